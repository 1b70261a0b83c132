"""The head of a shard file, as the safetensors format has it: a length, then JSON that says what lies where.

Pure: bytes in, places out. Places follow each other without a hole, from the end of the head to the end of the
file; anything else is refused.
"""

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from stratagem.errors import KeepError
from stratagem.keep.element_types import TRUE_DTYPES, as_stored, from_stored
from stratagem.keep.fields import Field, compact, parse, shown
from stratagem.keep.stored import StoredArray

LENGTH = struct.Struct("<Q")
LONGEST = 100_000_000
"""The format's own limit."""

_METADATA = "__metadata__"
_ALIGNMENT = 64


class Place(NamedTuple):
    """An array of a file, and its first byte, counted from the end of the head."""

    array: StoredArray
    start: int

    @property
    def stop(self) -> int:
        """The byte after its last."""
        return self.start + self.array.nbytes


def build(arrays: Mapping[str, StoredArray]) -> tuple[bytes, list[str]]:
    """The head of a file with these arrays, length included, and the order in which they follow.

    Wide elements come first, so that every array is aligned for its elements wherever the file is mapped.

    Raises:
        KeepError: A key that the format cannot have, or too many of them.
    """
    for key in arrays:
        _check_key(key)
    order = sorted(arrays, key=lambda key: (-arrays[key].element_type.itemsize, key))
    content: dict[str, Any] = {_METADATA: {"format": "np"}}
    unnamed = {}
    start = 0
    for key in order:
        name, shape = as_stored(arrays[key])
        stop = start + arrays[key].nbytes
        content[key] = {"dtype": name, "shape": shape, "data_offsets": [start, stop]}
        if from_stored(name, shape, None) != arrays[key]:
            unnamed[key] = arrays[key].dtype
        start = stop
    if unnamed:
        content[_METADATA][TRUE_DTYPES] = compact(unnamed).decode()
    text = compact(content)
    text += b" " * (-(LENGTH.size + len(text)) % _ALIGNMENT)
    if len(text) > LONGEST:
        raise KeepError(
            f"{len(arrays)} arrays need a head of {len(text)} bytes; the format allows {LONGEST}: spread them "
            "over more shards, or give them shorter names"
        )
    return LENGTH.pack(len(text)) + text, order


def read(text: bytes, payload: int) -> dict[str, Place]:
    """What lies where, in the order of the file.

    Args:
        text: The head without its length.
        payload: How many bytes follow.

    Raises:
        KeepError: The head is none, or does not fit the bytes that follow.
    """
    entries = Field(parse(text), "head").members()
    metadata = entries.pop(_METADATA, Field({})).members()
    unnamed = _true_dtypes(metadata)
    places = {key: _place(field, unnamed.pop(key, None)) for key, field in entries.items()}
    if unnamed:
        raise KeepError(f"the head tells dtypes of arrays that it does not have: {shown(sorted(unnamed))}")
    ordered = sorted(places.items(), key=lambda item: (item[1].start, item[1].stop))
    end = 0
    for key, place in ordered:
        if place.start != end:
            raise KeepError(f"the array {shown(key)} begins at byte {place.start}; it must begin at {end}")
        end = place.stop
    if end != payload:
        raise KeepError(f"the arrays take {end} bytes, but {payload} follow the head")
    return dict(ordered)


def _check_key(key: object) -> None:
    try:
        if isinstance(key, str) and key != _METADATA and key.encode():
            return
    except UnicodeEncodeError:
        pass
    raise KeepError(
        f"an array in a shard cannot be called {shown(key)}; it must be text, not empty, not {_METADATA!r}, "
        "and without halves of characters (surrogates)"
    )


def _true_dtypes(metadata: Mapping[str, Field]) -> dict[str, str]:
    if TRUE_DTYPES not in metadata:
        return {}
    text = metadata[TRUE_DTYPES].text()
    told = Field(parse(text.encode(errors="surrogatepass")), f"head.{_METADATA}.{TRUE_DTYPES}").members()
    return {key: dtype.text() for key, dtype in told.items()}


def _place(field: Field, true_dtype: str | None) -> Place:
    parts = field.exactly({"dtype", "shape", "data_offsets"})
    shape = [length.whole() for length in parts["shape"].items()]
    offsets = [offset.whole() for offset in parts["data_offsets"].items()]
    array = from_stored(parts["dtype"].text(), shape, true_dtype)
    if array is None or len(offsets) != 2 or offsets[0] + array.nbytes != offsets[1]:
        raise field.error("an array whose dtype, shape and offsets fit together")
    return Place(array, offsets[0])
