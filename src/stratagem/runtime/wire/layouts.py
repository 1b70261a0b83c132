"""How the tensors of a frame lie: what each of them is, and where.

Pure. Messages of one connection are mostly alike, so whoever has the layout of the last one need not find it anew.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from stratagem.errors import LimitExceeded, ProtocolError
from stratagem.runtime.wire.arrays import ALIGNMENT, Array, align
from stratagem.runtime.wire.dtypes import dtype_of, name_of
from stratagem.runtime.wire.limits import Limits

INLINE = -1
MAX_DIMENSIONS = 64
Kind: TypeAlias = tuple[np.dtype[Any], tuple[int, ...]]
"""The dtype and the shape of an array."""


class TensorSpec(NamedTuple):
    """One tensor of a frame: what it is, and its offset in the segment or `INLINE`."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    nbytes: int
    offset: int


class Layout(NamedTuple):
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
    specs: list[TensorSpec]
    total: int
    inline: int
    end: int
    is_plain: bool

    @classmethod
    def of(cls, listed: list[Any], specs: list[TensorSpec]) -> "Layout":
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


NO_TENSORS = Layout.of([], [])


def lay_out(kinds: Sequence[Kind], in_segment: bool) -> Layout:
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
        specs.append(TensorSpec(native, shape, nbytes, offset))
    return Layout.of(listed, specs)


def read_layout(listed: list[Any], limits: Limits) -> Layout:
    """What a header lists, checked.

    Raises:
        ProtocolError: It lists no tensors.
        LimitExceeded: They are too many, or too large.
    """
    if not listed:
        return NO_TENSORS
    if len(listed) > limits.tensors:
        raise LimitExceeded(f"{len(listed)} tensors in a frame; at most {limits.tensors} are accepted")
    layout = Layout.of(listed, [_read_spec(entry) for entry in listed])
    if layout.total > limits.frame_bytes:
        raise LimitExceeded(
            f"{layout.total} bytes of tensors in a frame; at most {limits.frame_bytes} are accepted"
        )
    return layout


def _read_spec(entry: Any) -> TensorSpec:
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
    return TensorSpec(dtype, tuple(shape), math.prod(shape) * dtype.itemsize, offset)
