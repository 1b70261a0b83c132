"""The form of a frame: a fixed prefix, a msgpack header, then the bytes of the inline tensors.

Pure: bytes in, values out. Everything that a peer claims is checked here before anything is allocated. The prefix and
the form of the header stay the same in all versions, so that two versions can name each other.

Most messages of a connection are alike, so a layout that equals the last one is not computed again.
"""

import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import msgpack
import numpy as np

from stratagem.errors import LimitExceeded, ProtocolError
from stratagem.runtime.wire.arrays import ALIGNMENT, Array, align, dtype_of, name_of
from stratagem.runtime.wire.limits import Limits

Fields: TypeAlias = dict[str, Any]
"""Plain values by name: None, bool, int, float, str, bytes, and lists and dictionaries of them."""

MAGIC = b"SGMW"
PREFIX = struct.Struct("!4sIQ")
MAX_DEPTH = 16
INLINE = -1
MAX_DIMENSIONS = 64
_PLAIN = (type(None), bool, int, float, str, bytes)
Kind: TypeAlias = tuple[np.dtype[Any], tuple[int, ...]]
"""The dtype and the shape of an array."""


class FrameTensor(NamedTuple):
    """One tensor of a frame, and its offset in the segment or `INLINE`."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    nbytes: int
    offset: int


class FrameLayout(NamedTuple):
    """The tensors of a frame, and where their bytes lie.

    Attributes:
        listed: The tensors as the header lists them: name of the dtype, shape and offset of each.
        specs: The same tensors, decoded.
        total: Bytes of all tensors.
        inline: Bytes of the tensors that follow the header.
        end: Bytes of the segment that the other tensors take up.
        is_plain: Whether any bytes are valid for these tensors, which is not so for bools.
    """

    listed: list[Any]
    specs: list[FrameTensor]
    total: int
    inline: int
    end: int
    is_plain: bool

    @classmethod
    def of(cls, listed: list[Any], specs: list[FrameTensor]) -> "FrameLayout":
        """Return the layout of these tensors."""
        total = sum(spec.nbytes for spec in specs)
        inline = sum(spec.nbytes for spec in specs if spec.offset == INLINE)
        end = max((spec.offset + spec.nbytes for spec in specs if spec.offset != INLINE), default=0)
        return cls(listed, specs, total, inline, end, all(spec.dtype.kind != "b" for spec in specs))

    def within(self, memory: Array) -> list[Array]:
        """Return the tensors as views of memory, each at its offset; inline ones, which are empty, at the beginning."""
        try:
            return [
                np.ndarray(shape, dtype, memory, 0 if offset == INLINE else offset)
                for dtype, shape, _, offset in self.specs
            ]
        except (ValueError, TypeError) as error:
            raise ProtocolError(f"impossible tensors: {error}") from error


NO_TENSORS = FrameLayout.of([], [])


def lay_out(kinds: Sequence[Kind], in_segment: bool) -> FrameLayout:
    """Lay out tensors one after the other, in the segment or inline; those without bytes are always inline.

    Raises:
        ProtocolError: A dtype may not cross the wire.
    """
    listed, specs, end = [], [], 0
    for dtype, shape in kinds:
        native = dtype if dtype.isnative else dtype.newbyteorder("=")
        nbytes = math.prod(shape) * native.itemsize
        offset = INLINE
        if in_segment and nbytes:
            offset, end = end, align(end + nbytes)
        listed.append([name_of(native), list(shape), offset])
        specs.append(FrameTensor(native, shape, nbytes, offset))
    return FrameLayout.of(listed, specs)


def read_layout(listed: list[Any], limits: Limits) -> FrameLayout:
    """Decode and check the tensors that a header lists.

    Raises:
        ProtocolError: An entry does not describe a tensor.
        LimitExceeded: The tensors are too many, or too large.
    """
    if not listed:
        return NO_TENSORS
    if len(listed) > limits.tensors:
        raise LimitExceeded(f"{len(listed)} tensors in a frame; at most {limits.tensors} are accepted")
    layout = FrameLayout.of(listed, [_read_tensor(entry) for entry in listed])
    if layout.total > limits.frame_bytes:
        raise LimitExceeded(
            f"{layout.total} bytes of tensors in a frame; at most {limits.frame_bytes} are accepted"
        )
    return layout


def _read_tensor(entry: Any) -> FrameTensor:
    if type(entry) is not list or len(entry) != 3:
        raise ProtocolError("a tensor that is not [dtype, shape, offset]")
    name, shape, offset = entry
    dtype = dtype_of(name)
    if type(shape) is not list or len(shape) > MAX_DIMENSIONS:
        raise ProtocolError(f"a tensor with the shape {shape!r:.80}")
    for size in shape:
        if type(size) is not int or size < 0:
            raise ProtocolError(f"a tensor with the shape {shape!r:.80}")
    if type(offset) is not int or (offset != INLINE and (offset < 0 or offset % ALIGNMENT)):
        raise ProtocolError(f"a tensor at offset {offset!r:.40}")
    return FrameTensor(dtype, tuple(shape), math.prod(shape) * dtype.itemsize, offset)


class Header(NamedTuple):
    """The header of a frame.

    Attributes:
        subject: The name of the call in a request; `ok` or `failed` in a reply.
        fields: Plain values.
        layout: The tensors that follow the header or lie in the segment, in order.
        timeout: Seconds that the sender will wait for an answer, if it said so.
        segment: Size of the new segment whose descriptor comes with this frame; 0 if none does.
    """

    subject: str
    fields: Fields
    layout: FrameLayout
    timeout: float | None
    segment: int


def pack(value: Any, packer: Any = None) -> bytes:
    """Return plain values as msgpack; raise `ProtocolError` if they cannot be sent."""
    try:
        packed: bytes = packer.pack(value) if packer is not None else msgpack.packb(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(
            f"these fields cannot be sent: {error}; fields hold None, bool, int, float, str, bytes, and lists and "
            "dictionaries with string keys of them; send arrays as tensors"
        ) from error
    return packed


def unpack(data: bytes) -> Any:
    """Return the plain values in msgpack, nested no deeper than `MAX_DEPTH`."""
    value = _unpack(data)
    _check_plain(value)
    return value


def _unpack(data: bytes) -> Any:
    try:
        return msgpack.unpackb(data)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise ProtocolError(f"a header that is not msgpack: {error!s:.200}") from error


def _check_plain(value: Any) -> None:
    layer = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for item in layer:
            kind = type(item)
            if kind is dict:
                inner.extend(item.values())
            elif kind is list:
                inner.extend(item)
            elif kind not in _PLAIN:
                raise ProtocolError(f"a header with a {kind.__name__}, which is not a plain value")
        if not inner:
            return
        layer = inner
    raise ProtocolError(f"a header nested deeper than {MAX_DEPTH}")


def check_prefix(prefix: bytes, limits: Limits) -> tuple[int, int]:
    """Return the lengths of header and payload; raise `ProtocolError` or `LimitExceeded` if they are invalid."""
    magic, header, payload = PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise ProtocolError(f"bytes that are not a frame: they begin with {magic!r}, not {MAGIC!r}")
    if header > limits.header_bytes:
        raise LimitExceeded(f"a header of {header} bytes; at most {limits.header_bytes} are accepted")
    if payload > limits.frame_bytes:
        raise LimitExceeded(f"a payload of {payload} bytes; at most {limits.frame_bytes} are accepted")
    return header, payload


def decode_header(data: bytes, payload: int, limits: Limits, last: FrameLayout = NO_TENSORS) -> Header:
    """Decode a header and check it; its inline tensors fill the payload exactly.

    Args:
        data: The bytes of the header.
        payload: The number of bytes that follow the header.
        limits: What is accepted.
        last: A layout that was accepted before, returned again if this header lists the same.
    """
    value = _unpack(data)
    if type(value) is not list or len(value) != 5:
        raise ProtocolError("a header that is not [subject, fields, tensors, timeout, segment]")
    subject, fields, listed, timeout, segment = value
    if type(subject) is not str or type(fields) is not dict or type(listed) is not list:
        raise ProtocolError("a header whose subject, fields or tensors have the wrong type")
    if fields:
        _check_plain(fields)
    if timeout is not None and (type(timeout) is not float or not math.isfinite(timeout)):
        raise ProtocolError(f"a header with the timeout {timeout!r:.40}")
    if type(segment) is not int or segment < 0:
        raise ProtocolError(f"a header with a segment of size {segment!r:.40}")
    layout = last if listed == last.listed else read_layout(listed, limits)
    if layout.inline != payload:
        raise ProtocolError(f"inline tensors of {layout.inline} bytes, but a payload of {payload}")
    return Header(subject, fields, layout, timeout, segment)
