"""Messages over a stream: a subject, plain fields and tensors, inline or through shared memory.

The two sides take turns, one message at a time: what a segment holds is therefore good until the far side's next message.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgpack
import numpy as np

from stratagem.errors import LimitExceeded, ProtocolError, RemoteError
from stratagem.runtime.wire.arrays import Array, empty_aligned, raw_bytes, raw_view, sendable
from stratagem.runtime.wire.frames import (
    INLINE,
    MAGIC,
    NO_TENSORS,
    PREFIX,
    Fields,
    FrameLayout,
    FrameTensor,
    Kind,
    check_prefix,
    decode_header,
    lay_out,
    pack,
)
from stratagem.runtime.wire.limits import KIB, MIB, Limits
from stratagem.runtime.wire.shared_memory import Broadcast, BroadcastBuffer, IncomingSegment, OutgoingSegment
from stratagem.runtime.wire.sockets import Stream
from stratagem.runtime.wire.waiting import TimeLimit

SHARED_FROM = 32 * KIB
"""Messages with fewer bytes of tensors go through the socket even where there is shared memory."""
_PREFIX_BYTES = PREFIX.size
_BUFFER = 64 * KIB
_DIRECT_FROM = 16 * KIB
_WORTH_DRAINING = 1 * MIB


class Message(NamedTuple):
    """A message as it was received.

    Attributes:
        header: The header as received, for the transcript of a handshake.
        borrowed: Whether the tensors are read-only views of shared memory, good until the far side's next message.
    """

    subject: str
    fields: Fields
    tensors: list[Array]
    timeout: float | None
    header: bytes
    nbytes: int
    borrowed: bool


def without_lease(segment: Array) -> Array:
    """Borrow tensors without a lease: for a receiver that is done with them before it sends its next message."""
    return segment


class Channel:
    """Sends and receives messages over one stream.

    Attributes:
        limits: What is accepted from the far side; raised once it is authenticated.
        far_limits: What the far side accepts, once it has said so.
        shares_memory: Whether large tensors go through shared memory.
        is_intact: Whether the last frame was read to its end, so that the next byte begins another.
    """

    def __init__(self, stream: Stream, limits: Limits) -> None:
        self.stream = stream
        self.limits = limits
        self.far_limits: Limits | None = None
        self.shares_memory = False
        self.is_intact = True
        self._packer = msgpack.Packer(buf_size=4 * KIB)
        self._buffer = memoryview(bytearray(_BUFFER))
        self._start = self._end = 0
        self._descriptor: int | None = None
        self._outgoing = OutgoingSegment()
        self._lent: Array | None = None
        self._buffer_to_lend: Array = np.empty(0, np.uint8)
        self._known_segment = 0
        self._broadcast_buffer: BroadcastBuffer | None = None
        self._incoming = IncomingSegment()
        # Of the last message with tensors, which the next one usually resembles.
        self._last_sent: tuple[list[Kind], FrameLayout] = [], NO_TENSORS
        self._last_received = NO_TENSORS

    # ---------------------------------------------------------------- sending

    def lend(self, nbytes: int) -> Array:
        """Return memory for the one tensor of the next message, which then needs no copying.

        The memory is shared with the far side if possible. Its content is undefined. Once it was sent, it must not be
        changed until the far side's next message but one has come.
        """
        self._lent = None
        if self.shares_memory and nbytes >= SHARED_FROM:
            with suppress(LimitExceeded):  # the socket carries it as well, only slower
                self._outgoing.reserve(nbytes)
                self._lent = self._outgoing.room(nbytes)
                return self._lent
        if self._buffer_to_lend.nbytes < nbytes:
            self._buffer_to_lend = empty_aligned(np.dtype(np.uint8), (nbytes,), nbytes)
        return self._buffer_to_lend[:nbytes]

    def through_socket(self, tensors: Sequence[Array]) -> int:
        """Return the bytes of these tensors that the socket may have to carry."""
        return sum(tensor.nbytes for tensor in tensors if tensor is not self._lent)

    def send(
        self,
        subject: str,
        fields: Fields,
        tensors: Sequence[Any],
        limit: TimeLimit,
        timeout: float | None = None,
    ) -> tuple[bytes, int]:
        """Send one message; return its header and its size in bytes.

        Raises:
            LimitExceeded: It is more than the far side accepts; nothing was sent.
            ProtocolError: It cannot be put into a frame; nothing was sent.
        """
        arrays: Sequence[Array] = tensors
        if type(tensors) is not Broadcast:
            arrays = [tensor if type(tensor) is np.ndarray else np.asarray(tensor) for tensor in tensors]
        layout, segment = self._place(arrays) if arrays else (NO_TENSORS, None)
        size, descriptor = 0, None
        if segment is not None and segment.number != self._known_segment:
            size, descriptor = segment.size, segment.descriptor
        header = pack((subject, fields, layout.listed, timeout, size), self._packer)
        if self.far_limits is not None and len(header) > self.far_limits.header_bytes:
            raise LimitExceeded(
                f"fields of {len(header)} bytes; the far side accepts {self.far_limits.header_bytes}"
            )
        if segment is not None:
            self._known_segment = segment.number
        frame = memoryview(PREFIX.pack(MAGIC, len(header), layout.inline) + header)
        if layout.inline:
            inline = [
                raw_view(sendable(array))
                for array, spec in zip(arrays, layout.specs, strict=True)
                if spec.offset == INLINE and spec.nbytes
            ]
            self.stream.send([frame, *inline], limit, descriptor)
        else:
            self.stream.send((frame,), limit, descriptor)
        return header, len(frame) + layout.total

    def _place(self, arrays: Sequence[Array]) -> tuple[FrameLayout, OutgoingSegment | None]:
        """Copy arrays into a segment if that is worthwhile and they are not there yet; return the layout and segment."""
        kinds: list[Kind] = [(array.dtype, array.shape) for array in arrays]
        if kinds != self._last_sent[0]:
            self._last_sent = kinds, self._acceptable_layout(arrays, kinds)
        layout = self._last_sent[1]
        if not layout.end:
            return layout, None
        if arrays[0] is self._lent and len(arrays) == 1:
            self._lent = None
            return layout, self._outgoing
        try:
            if isinstance(arrays, Broadcast):
                self.release_broadcast()
                self._broadcast_buffer = buffer = arrays.buffers.acquire(arrays, layout)
                return buffer.layout, buffer.segment
            if self._outgoing.layout is not layout:
                self._outgoing.reserve(layout.end)
                self._outgoing.lay_out(layout)
        except LimitExceeded:
            # The socket carries them as well, only slower.
            return lay_out(kinds, in_segment=False), None
        for array, place in zip(arrays, self._outgoing.places, strict=True):
            place[...] = array
        return layout, self._outgoing

    def release_broadcast(self) -> None:
        """Release the broadcast buffer last sent: the far side has sent a message since, so it reads it no more."""
        if self._broadcast_buffer is not None:
            self._broadcast_buffer.owner.release(self._broadcast_buffer)
            self._broadcast_buffer = None

    def _acceptable_layout(self, arrays: Sequence[Array], kinds: Sequence[Kind]) -> FrameLayout:
        """Lay arrays out; raise `LimitExceeded` if they are more than the far side accepts."""
        total, far = sum(array.nbytes for array in arrays), self.far_limits
        if far is not None and total > far.frame_bytes:
            raise LimitExceeded(
                f"tensors of {total} bytes in one call; the far side accepts {far.frame_bytes}"
            )
        if far is not None and len(arrays) > far.tensors:
            raise LimitExceeded(f"{len(arrays)} tensors in one call; the far side accepts {far.tensors}")
        return lay_out(kinds, self.shares_memory and total >= SHARED_FROM)

    # -------------------------------------------------------------- receiving

    def receive(
        self,
        first: TimeLimit,
        rest: TimeLimit,
        *,
        borrow: Callable[[Array], Array] | None = None,
        into: Sequence[Array | None] | None = None,
    ) -> Message:
        """Receive one message.

        Args:
            first: How long to wait for it to begin.
            rest: How long it may take from then on.
            borrow: Return large tensors as views of shared memory instead of copies: views of what this makes of all of
                the segment, such as `Lease.lend` or `without_lease`.
            into: Arrays to receive into, in the order of the tensors; `None` for a new one.

        Raises:
            ProtocolError: The bytes are not a message; `is_intact` says whether another may follow.
            LimitExceeded: The message is more than `limits` allows.
        """
        self.is_intact = False
        if self._start == self._end:
            self._fill(first)
        header_bytes, payload_bytes = check_prefix(self._read(_PREFIX_BYTES, rest), self.limits)
        data = self._read(header_bytes, rest)
        try:
            subject, fields, layout, timeout, segment = decode_header(
                data, payload_bytes, self.limits, self._last_received
            )
            # A descriptor that came along may belong to a frame that follows in the buffer.
            is_last = self._end - self._start <= payload_bytes
            if segment or (is_last and self._descriptor is not None):
                self._adopt(segment)
            tensors, to_fill = self._targets(layout, borrow, into) if layout.specs else ([], [])
        except RemoteError:
            self._skip(payload_bytes, rest)
            raise
        if to_fill:
            self._read_tensors(layout, to_fill, rest)
        self.is_intact = True
        nbytes = _PREFIX_BYTES + header_bytes + layout.total
        borrowed = bool(tensors) and tensors is not to_fill
        return Message(subject, fields, tensors, timeout, data, nbytes, borrowed)

    def _adopt(self, size: int) -> None:
        """Map the segment that came with the frame, announced with this size; 0 means that none may have come."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None and size == 0:
            return
        if descriptor is not None and size and self.shares_memory:
            # Sizes are powers of two, so a segment may be up to twice as large as any frame.
            self._incoming.adopt(descriptor, size, 2 * self.limits.frame_bytes)
            return
        if descriptor is not None:
            os.close(descriptor)
        raise ProtocolError("a descriptor that was not announced, or the reverse")

    def _targets(
        self,
        layout: FrameLayout,
        borrow: Callable[[Array], Array] | None,
        into: Sequence[Array | None] | None,
    ) -> tuple[list[Array], list[Array]]:
        """Return the tensors, and those among them that are still to be filled: all or none.

        The tensors are the caller's arrays, or new ones, or read-only views of shared memory.
        """
        self._incoming.check(layout)
        self._last_received = layout
        # Bytes of a bool are checked, so the far side must not be able to change them afterwards.
        if borrow is not None and into is None and layout.is_plain and layout.end and not layout.inline:
            if borrow is without_lease:
                return list(self._incoming.tensors(layout)), []
            return layout.within(borrow(self._incoming.view)), []
        targets = [self._target(spec, index, into) for index, spec in enumerate(layout.specs)]
        return targets, targets

    def _target(self, spec: FrameTensor, index: int, into: Sequence[Array | None] | None) -> Array:
        """Return the caller's array for a tensor, or a new one."""
        target = None
        if into is not None:
            if index >= len(into):
                raise ProtocolError(f"more tensors than the {len(into)} arrays given to receive into")
            target = into[index]
        if target is None:
            return empty_aligned(spec.dtype, spec.shape, spec.nbytes)
        fits = target.dtype == spec.dtype and target.shape == spec.shape
        if not (fits and target.flags.c_contiguous and target.flags.writeable):
            raise ProtocolError(
                f"tensor {index} is {spec.dtype}{list(spec.shape)}; the array to receive it into is "
                f"{target.dtype}{list(target.shape)}: it must be the same, contiguous and writable"
            )
        return target

    def _read_tensors(self, layout: FrameLayout, targets: list[Array], limit: TimeLimit) -> None:
        """Fill the targets."""
        for spec, target in zip(layout.specs, targets, strict=True):
            if spec.offset != INLINE:
                source = self._incoming.view[spec.offset : spec.offset + spec.nbytes]
                np.copyto(raw_bytes(target), source)
            elif spec.nbytes:
                self._read_into(raw_view(target), limit)
        self.is_intact = True
        if layout.is_plain:
            return
        for spec, target in zip(layout.specs, targets, strict=True):
            if spec.dtype.kind == "b" and spec.nbytes and raw_bytes(target).max() > 1:
                # NumPy counts and masks with bools by the byte: other values would make it overrun.
                raw_bytes(target)[:] = 0
                raise ProtocolError("a bool tensor with bytes other than 0 and 1")

    def _fill(self, limit: TimeLimit) -> None:
        """Receive available bytes into the buffer, behind those that are there."""
        if self._start == self._end:
            self._start = self._end = 0
            count, descriptor = self.stream.receive_with_descriptor(self._buffer, limit)
        else:
            count, descriptor = self.stream.receive_with_descriptor(self._buffer[self._end :], limit)
        self._end += count
        if descriptor is not None:
            if self._descriptor is not None:
                os.close(descriptor)
                raise ProtocolError("more than one descriptor with a frame")
            self._descriptor = descriptor

    def _read(self, size: int, limit: TimeLimit) -> bytes:
        while self._end - self._start < size:
            if size > _BUFFER:
                data = bytearray(size)
                self._read_into(memoryview(data), limit)
                return bytes(data)
            if self._start + size > _BUFFER:
                unread = self._end - self._start
                self._buffer[:unread] = bytes(self._buffer[self._start : self._end])
                self._start, self._end = 0, unread
            self._fill(limit)  # begins at the buffer's front again when nothing is unread
        start, end = self._start, self._start + size
        self._start = end
        return self._buffer[start:end].tobytes()

    def _read_into(self, view: memoryview, limit: TimeLimit) -> None:
        while view:
            unread = min(self._end - self._start, len(view))
            if unread:
                view[:unread] = self._buffer[self._start : self._start + unread]
                self._start += unread
                view = view[unread:]
            elif len(view) >= _DIRECT_FROM:
                view = view[self.stream.receive(view, limit) :]
            else:
                self._fill(limit)

    def _skip(self, size: int, limit: TimeLimit) -> None:
        """Discard the payload of a message that was refused, so that another can follow."""
        if size <= _WORTH_DRAINING:
            self._read_into(memoryview(bytearray(size)), limit)
            self.is_intact = True

    # ------------------------------------------------------------------ state

    def wait(self, seconds: float, alarm: int) -> bool:
        """Wait until a message begins or the connection ends, as `Stream.wait` does."""
        return self._start != self._end or self.stream.wait(seconds, alarm)

    def is_quiet(self) -> bool:
        """Return whether the connection is open with nothing unread, as an idle one should be."""
        return self.is_intact and self._start == self._end and self.stream.is_quiet()

    def close(self) -> None:
        """Close the stream, the descriptors and the mappings."""
        self.stream.close()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self.release_broadcast()
        self._outgoing.close()
        self._incoming.close()
