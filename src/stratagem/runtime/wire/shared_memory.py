"""Shared memory without a name: memfds whose descriptors travel over the Unix socket.

Each direction of a connection has one segment at a time. Its sender creates it, reuses it from frame to frame, and
replaces it by a larger one when needed. A segment lives as long as a process maps it, and no longer.

A lease lends tensors of a segment to a caller. A broadcast buffer is a segment that several callers read.
"""

import fcntl
import itertools
import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import EllipsisType
from typing import Any, Final, TypeAlias

import numpy as np

from stratagem.errors import ProtocolError
from stratagem.runtime.wire.arrays import Array
from stratagem.runtime.wire.error_translation import during_allocation, reason
from stratagem.runtime.wire.frames import NO_TENSORS, FrameLayout
from stratagem.runtime.wire.limits import KIB, MIB

_SMALLEST: Final = 256 * KIB
_WORTH_DROPPING: Final = 4 * MIB
_IDLE_USES: Final = 64
_NOTHING: Final[Array] = np.empty(0, np.uint8)
_NUMBERS = itertools.count(1)
_SEAL_FUTURE_WRITE: Final = 0x10  # of Linux 5.1; Python 3.11 has no name for it
_PIECE = 2 * MIB
_SPARE = 1
"""Free broadcast buffers to keep beside those in use."""
Rows: TypeAlias = slice | EllipsisType


class OutgoingSegment:
    """The segment that this side writes and the far side reads.

    Its size is a power of two, but memory is allocated only for the part in use, before it is written: running out of
    memory is then an error, not a signal. A large segment that has long been used for little is dropped.

    Attributes:
        size: Its size in bytes.
        number: Unique among the segments of this process; 0 while there is no segment.
        descriptor: To be sent to those who may read the segment; this object still owns it.
        layout: The layout it was last prepared for; tensors of the same layout need nothing reserved.
        places: Where the tensors of that layout go.
    """

    def __init__(self) -> None:
        self.size = self.number = 0
        self.descriptor: int | None = None
        self._view: Array = _NOTHING
        self._reserved = 0
        self._little_used = 0
        self.layout = NO_TENSORS
        self.places: list[Array] = []

    def reserve(self, size: int) -> None:
        """Make room for this many bytes, in a new segment if need be.

        Raises:
            LimitExceeded: There is no memory for it.
        """
        self._drop_if_idle(size)
        try:
            if size > self.size:
                self._create(max(_SMALLEST, 1 << (size - 1).bit_length()))
            if size > self._reserved and self.descriptor is not None:
                os.posix_fallocate(self.descriptor, self._reserved, size - self._reserved)
                self._reserved = size
        except OSError as error:
            self.close()
            raise during_allocation(error) from error

    def _drop_if_idle(self, size: int) -> None:
        if self._reserved < _WORTH_DROPPING or size * 4 > self._reserved:
            self._little_used = 0
            return
        self._little_used += 1
        if self._little_used >= _IDLE_USES:
            self.close()

    def _create(self, size: int) -> None:
        self.close()
        self.descriptor = os.memfd_create("stratagem", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, size)
        self._view = np.frombuffer(mmap.mmap(self.descriptor, size), np.uint8)
        with suppress(OSError):  # on an older kernel readers could also write
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEAL_FUTURE_WRITE)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)
        self.size, self.number = size, next(_NUMBERS)

    def lay_out(self, layout: FrameLayout) -> None:
        """Prepare places for tensors, for which room was reserved."""
        # A segment that is used for little has to be reserved each time, so that it is dropped in the end.
        self.layout = NO_TENSORS if self._little_used else layout
        self.places = layout.within(self._view)

    def room(self, nbytes: int) -> Array:
        """Return the first bytes of the reserved room, to write to."""
        return self._view[:nbytes]

    def close(self) -> None:
        """Let go of the segment; its memory is freed with the last view of it on either side."""
        if self.descriptor is not None:
            os.close(self.descriptor)
        self._view, self.descriptor = _NOTHING, None
        self.layout, self.places = NO_TENSORS, []
        self.size = self.number = self._reserved = self._little_used = 0

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.descriptor is not None:  # of a broadcast buffer, which nobody closes
            close(self.descriptor)


class IncomingSegment:
    """The segment that the far side writes, mapped here read-only.

    Attributes:
        view: All of its bytes.
    """

    def __init__(self) -> None:
        self.view: Array = _NOTHING
        self._last = NO_TENSORS, list[Array]()

    def adopt(self, descriptor: int, size: int, limit: int) -> None:
        """Map the segment behind a received descriptor, which is closed in any case.

        Only a file sealed against shrinking is mapped: if another were cut short later, reading it would be a signal
        that kills the process.
        """
        try:
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            real_size = os.fstat(descriptor).st_size
            if not seals & fcntl.F_SEAL_SHRINK or real_size != size or not 0 < size <= limit:
                raise ProtocolError(
                    f"a descriptor of {real_size} bytes with seals {seals:#x}, announced as a segment of {size}"
                )
            # The old mapping is not closed, only let go of: arrays handed out earlier keep it alive.
            self.view = np.frombuffer(mmap.mmap(descriptor, size, prot=mmap.PROT_READ), np.uint8)
            self._last = NO_TENSORS, []
        except OSError as error:
            raise ProtocolError(f"a descriptor that is not shared memory: {reason(error)}") from error
        finally:
            os.close(descriptor)

    def check(self, layout: FrameLayout) -> None:
        """Raise `ProtocolError` unless the segment has room for a layout."""
        if layout.end > self.view.nbytes:
            raise ProtocolError(f"tensors up to byte {layout.end} of a segment of {self.view.nbytes}")

    def tensors(self, layout: FrameLayout) -> list[Array]:
        """Return the tensors of a layout that was checked; the same arrays for the same layout."""
        if self._last[0] is not layout:
            self._last = layout, layout.within(self.view)
        return self._last[1]

    def close(self) -> None:
        """Let go of the mapping."""
        self.view = _NOTHING
        self._last = NO_TENSORS, []


class Lease:
    """Lends arrays of shared memory, and ends when the last of them is gone, so that a connection may be used again.

    Python's own references count the loans, so views of views and arrays that JAX reads in place count too.

    Args:
        on_end: Called when nothing that was lent is in use any more, in the thread that lets go of the last array.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end

    def lend(self, array: Array) -> Array:
        """Return the same bytes as an array that keeps the lease alive as long as it or a view of it lives.

        The array must be all of a mapping, as `np.frombuffer` returns it.
        """
        # Made of the mapping, not of the array: NumPy takes the last in a chain of plain arrays for the owner of a
        # view's memory, and does not keep those it passes over.
        loan = _Loan(array.shape, array.dtype, array.base)
        loan.lease = self
        return loan

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():  # the modules that a pool needs are gone by then, and nobody calls any more
            self._on_end()


class _Loan(np.ndarray[Any, np.dtype[Any]]):
    """An array that NumPy takes for the owner of lent memory."""

    lease: Lease


class Broadcast(list[Array]):
    """Tensors that are sent to several callers, and do not change meanwhile.

    Callers who share memory with this process all read one copy of them. Each sender copies what the others have not
    copied yet, so no sender waits for another. A piece may be copied twice, which does no harm: both copies are equal.

    Args:
        buffers: The segments for that copy.
        arrays: The tensors.
    """

    def __init__(self, buffers: "BroadcastBuffers", arrays: Iterable[Array]) -> None:
        super().__init__(arrays)
        self.buffers = buffers


class BroadcastBuffer:
    """A segment with the tensors of one broadcast.

    Attributes:
        owner: The buffers that it is one of.
        layout: How the tensors lie in it.
        broadcast: The broadcast that it holds.
        readers: The number of callers that may be reading it.
    """

    def __init__(self, owner: "BroadcastBuffers") -> None:
        self.owner = owner
        self.segment = OutgoingSegment()
        self.layout = NO_TENSORS
        self.broadcast: Broadcast | None = None
        self.readers = 0
        self._pieces: list[tuple[Array, int, Rows]] = []
        self._is_copied: list[bool] = []

    def assign(self, broadcast: Broadcast, layout: FrameLayout) -> None:
        """Make room for a broadcast; raise `LimitExceeded` if there is no memory."""
        self.broadcast = None
        if self.segment.layout.specs != layout.specs:
            self.segment.reserve(layout.end)
            self.segment.lay_out(layout)
            self.layout = layout
            self._pieces = [
                (place[rows], index, rows)
                for index, place in enumerate(self.segment.places)
                for rows in _pieces(place)
            ]
        self.broadcast = broadcast
        self._is_copied = [False] * len(self._pieces)

    def fill(self, broadcast: Broadcast, backwards: bool) -> None:
        """Copy the pieces that nobody has copied; two threads that begin at opposite ends meet in the middle."""
        is_copied = self._is_copied
        numbers = range(len(is_copied))
        for number in reversed(numbers) if backwards else numbers:
            if not is_copied[number]:
                place, index, rows = self._pieces[number]
                place[...] = broadcast[index][rows]
                is_copied[number] = True


class BroadcastBuffers:
    """The segments for one series of broadcasts: mostly one, and older ones as long as somebody may be reading them."""

    def __init__(self) -> None:
        self._buffers: list[BroadcastBuffer] = []
        self._lock = threading.Lock()

    def acquire(self, broadcast: Broadcast, layout: FrameLayout) -> BroadcastBuffer:
        """Return a filled buffer for one more reader, for whom it has to be released with `release`.

        Args:
            broadcast: The tensors, which must not change before this returns.
            layout: How to lay them out in a segment.

        Raises:
            LimitExceeded: There is no memory for it.
        """
        with self._lock:
            buffer = self._buffer_for(broadcast, layout)
            is_second = buffer.readers % 2 == 1
            buffer.readers += 1
        buffer.fill(broadcast, backwards=is_second)
        return buffer

    def _buffer_for(self, broadcast: Broadcast, layout: FrameLayout) -> BroadcastBuffer:
        free = []
        for buffer in self._buffers:
            if buffer.broadcast is broadcast:
                return buffer
            if not buffer.readers:
                free.append(buffer)
        if not free:
            free.append(BroadcastBuffer(self))
            self._buffers.append(free[0])
        for buffer in free[1 + _SPARE :]:
            self._buffers.remove(buffer)
            buffer.segment.close()
        free[0].assign(broadcast, layout)
        return free[0]

    def release(self, buffer: BroadcastBuffer) -> None:
        """Count one reader less."""
        with self._lock:
            buffer.readers -= 1


def _pieces(place: Array) -> list[Rows]:
    """Return the rows of an array in pieces of about two megabytes; of a single number, all of it."""
    if not place.ndim:
        return [...]
    rows = max(1, _PIECE * len(place) // max(1, place.nbytes))
    return [slice(start, start + rows) for start in range(0, len(place), rows)]
