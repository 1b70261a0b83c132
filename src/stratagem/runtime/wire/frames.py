"""How the tensors of a frame lie: what each of them is, and where.

Pure. Messages of one connection are mostly alike, so whoever has the layout of the last one need not find it anew.


The form of a frame: a fixed prefix, a msgpack header, then the bytes of the tensors that go inline.

Pure: bytes in, values out; everything a peer claims is checked here before anything is allocated. The
prefix and the form of the header stay the same in all versions, so that versions can name each other.
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

INLINE = -1
MAX_DIMENSIONS = 64
Kind: TypeAlias = tuple[np.dtype[Any], tuple[int, ...]]
"""The dtype and the shape of an array."""


class FrameTensor(NamedTuple):
    """One tensor of a frame: what it is, and its offset in the segment or `INLINE`."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    nbytes: int
    offset: int


class FrameLayout(NamedTuple):
    """The tensors of a frame.

    Attributes:
        listed: They as the header lists them: dtype's name, shape and offset of each.
        specs: The same, understood.
        total: Bytes of all of them.
        inline: Bytes of those that follow the header.
        end: How much of the segment the others take.
        is_plain: Whether any bytes make good tensors: not of bools.
    """

    listed: list[Any]
    specs: list[FrameTensor]
    total: int
    inline: int
    end: int
    is_plain: bool

    @classmethod
    def of(cls, listed: list[Any], specs: list[FrameTensor]) -> "FrameLayout":
        """The layout of these, with what follows from it."""
        total = sum(spec.nbytes for spec in specs)
        inline = sum(spec.nbytes for spec in specs if spec.offset == INLINE)
        end = max((spec.offset + spec.nbytes for spec in specs if spec.offset != INLINE), default=0)
        return cls(listed, specs, total, inline, end, all(spec.dtype.kind != "b" for spec in specs))

    def within(self, memory: Array) -> list[Array]:
        """The tensors, of bytes that have each at its offset; those that are inline, at the beginning."""
        try:
            return [
                np.ndarray(shape, dtype, memory, 0 if offset == INLINE else offset)
                for dtype, shape, _, offset in self.specs
            ]
        except (ValueError, TypeError) as error:
            raise ProtocolError(f"tensors that cannot be: {error}") from error


NO_TENSORS = FrameLayout.of([], [])


def lay_out(kinds: Sequence[Kind], in_segment: bool) -> FrameLayout:
    """Tensors one after the other, in the segment or inline; those without bytes are inline in any case.

    Raises:
        ProtocolError: One is of a dtype that may not cross the wire.
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
    """What a header lists, checked.

    Raises:
        ProtocolError: It lists no tensors.
        LimitExceeded: They are too many, or too large.
    """
    if not listed:
        return NO_TENSORS
    if len(listed) > limits.tensors:
        raise LimitExceeded(f"{len(listed)} tensors in a frame; at most {limits.tensors} are accepted")
    layout = FrameLayout.of(listed, [_read_spec(entry) for entry in listed])
    if layout.total > limits.frame_bytes:
        raise LimitExceeded(
            f"{layout.total} bytes of tensors in a frame; at most {limits.frame_bytes} are accepted"
        )
    return layout


def _read_spec(entry: Any) -> FrameTensor:
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


Fields: TypeAlias = dict[str, Any]
"""Plain values by name: None, bool, int, float, str, bytes, and lists and dictionaries of them."""

MAGIC = b"SGMW"
PREFIX = struct.Struct("!4sIQ")
MAX_DEPTH = 16
_PLAIN = (type(None), bool, int, float, str, bytes)


class Header(NamedTuple):
    """The header of a frame.

    Attributes:
        subject: The call's name in a request; how it went in a reply.
        fields: Plain values.
        layout: What follows the header, or lies in the segment, in order.
        timeout: How many seconds the sender will wait for an answer, if it said so.
        segment: Size of the new segment whose descriptor comes with this frame; 0 if none does.
    """

    subject: str
    fields: Fields
    layout: FrameLayout
    timeout: float | None
    segment: int


def pack(value: Any, packer: Any = None) -> bytes:
    """Plain values as msgpack; `ProtocolError` says what cannot be sent."""
    try:
        packed: bytes = packer.pack(value) if packer is not None else msgpack.packb(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(
            f"these fields cannot be sent: {error}; fields hold None, bool, int, float, str, bytes, lists and "
            "dictionaries with string keys; arrays go as tensors"
        ) from error
    return packed


def unpack(data: bytes) -> Any:
    """Msgpack as plain values, no deeper than `MAX_DEPTH`."""
    value = _unpack(data)
    _check_plain(value)
    return value


def _unpack(data: bytes) -> Any:
    try:
        return msgpack.unpackb(data)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise ProtocolError(f"a header that is no msgpack: {error!s:.200}") from error


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
                raise ProtocolError(f"a header with a {kind.__name__}, which is no plain value")
        if not inner:
            return
        layer = inner
    raise ProtocolError(f"a header nested deeper than {MAX_DEPTH}")


def check_prefix(prefix: bytes, limits: Limits) -> tuple[int, int]:
    """Lengths of header and payload; `ProtocolError` or `LimitExceeded` if they cannot be."""
    magic, header, payload = PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise ProtocolError(f"bytes that are no frame: they begin with {magic!r}, not {MAGIC!r}")
    if header > limits.header_bytes:
        raise LimitExceeded(f"a header of {header} bytes; at most {limits.header_bytes} are accepted")
    if payload > limits.frame_bytes:
        raise LimitExceeded(f"a payload of {payload} bytes; at most {limits.frame_bytes} are accepted")
    return header, payload


def decode_header(data: bytes, payload: int, limits: Limits, last: FrameLayout = NO_TENSORS) -> Header:
    """The header, checked; its inline tensors fill the payload exactly.

    Args:
        data: The bytes.
        payload: How many follow them.
        limits: What is accepted.
        last: A layout that was accepted before, which this one may be like.
    """
    value = _unpack(data)
    if type(value) is not list or len(value) != 5:
        raise ProtocolError("a header that is not [subject, fields, tensors, timeout, segment]")
    subject, fields, listed, timeout, segment = value
    if type(subject) is not str or type(fields) is not dict or type(listed) is not list:
        raise ProtocolError("a header whose subject, fields or tensors are of another type")
    if fields:
        _check_plain(fields)
    if timeout is not None and (type(timeout) is not float or not math.isfinite(timeout)):
        raise ProtocolError(f"a header with the timeout {timeout!r:.40}")
    if type(segment) is not int or segment < 0:
        raise ProtocolError(f"a header with a segment of size {segment!r:.40}")
    layout = last if listed == last.listed else read_layout(listed, limits)
    if layout.inline != payload:
        raise ProtocolError(f"tensors of {layout.inline} bytes announced with a payload of {payload}")
    return Header(subject, fields, layout, timeout, segment)
