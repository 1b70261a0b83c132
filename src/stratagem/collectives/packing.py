"""Arrays written into the bytes of a chunk, and chunks seen as arrays again."""

from collections.abc import Sequence

import numpy as np

from stratagem.collectives.layout import Chunk
from stratagem.collectives.specs import ArraySpec
from stratagem.errors import ProtocolError
from stratagem.runtime.wire import empty_aligned
from stratagem.runtime.wire.arrays import Array


def pieces_in(room: Array, chunk: Chunk, specs: Sequence[ArraySpec]) -> list[Array]:
    """The pieces of a chunk as flat arrays that lie in these bytes."""
    return [
        room[piece.offset : piece.offset + piece.nbytes].view(specs[piece.array].dtype)
        for piece in chunk.pieces
    ]


def arrays_in(room: Array, whole: Chunk, specs: Sequence[ArraySpec]) -> list[Array]:
    """All arrays of a layout, in their shapes, as they lie in these bytes."""
    found: list[Array | None] = [None] * len(specs)
    for piece, flat in zip(whole.pieces, pieces_in(room, whole, specs), strict=True):
        found[piece.array] = flat.reshape(specs[piece.array].shape)
    # Those without an element have no place.
    return [
        np.empty(spec.shape, spec.dtype) if array is None else array
        for spec, array in zip(specs, found, strict=True)
    ]


def write(room: Array, chunk: Chunk, flats: Sequence[Array], specs: Sequence[ArraySpec]) -> Array:
    """Copy what a chunk holds of these flat arrays into its bytes."""
    for piece, target in zip(chunk.pieces, pieces_in(room, chunk, specs), strict=True):
        np.copyto(target, flats[piece.array][piece.start : piece.stop])
    return room


def received(tensors: Sequence[Array], chunk: Chunk) -> Array:
    """The bytes of a chunk that another worker has sent."""
    if len(tensors) != 1 or tensors[0].dtype != np.uint8 or tensors[0].shape != (chunk.nbytes,):
        told = [f"{tensor.dtype}{list(tensor.shape)}" for tensor in tensors]
        raise ProtocolError(f"a part of {chunk.nbytes} bytes was announced, and {told} came")
    return tensors[0]


def new_room(chunk: Chunk) -> Array:
    """Memory for a chunk."""
    return empty_aligned(np.dtype(np.uint8), (chunk.nbytes,), chunk.nbytes)
