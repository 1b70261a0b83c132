"""The form of a frame: a fixed prefix, a msgpack header, then the bytes of the tensors that go inline.

Pure: bytes in, values out; everything a peer claims is checked here before anything is allocated. The
prefix and the form of the header stay the same in all versions, so that versions can name each other.
"""

import math
import struct
from typing import Any, NamedTuple, TypeAlias

import msgpack

from stratagem.errors import LimitExceeded, ProtocolError
from stratagem.runtime.wire.layouts import NO_TENSORS, Layout, read_layout
from stratagem.runtime.wire.limits import Limits

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
    layout: Layout
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


def decode_header(data: bytes, payload: int, limits: Limits, last: Layout = NO_TENSORS) -> Header:
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
