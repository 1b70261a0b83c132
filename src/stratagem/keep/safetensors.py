"""The head of a file in the safetensors format: a length, then JSON that says where each array lies.

Pure. Arrays follow each other without a gap, from the end of the head to the end of the file; anything else is
refused.
"""

import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from stratagem.errors import KeepError
from stratagem.keep.checked_json import JsonField, compact, excerpt, parse_json
from stratagem.keep.records import StoredArray

LENGTH = struct.Struct("<Q")
LONGEST = 100_000_000
"""The format's own limit."""
_METADATA = "__metadata__"
_ALIGNMENT = 64
# These names are read by every version of the library since 0.5, which refuses a file with an unknown one.
DTYPE_NAMES: Final = {
    "bool": "BOOL",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
_DTYPES: Final = {name: dtype for dtype, name in DTYPE_NAMES.items()}
_TRUE_DTYPES: Final = "stratagem.dtypes"
"""The file's metadata of this name is a JSON object: for each array stored as bytes, its dtype."""


class ArrayOffset(NamedTuple):
    """An array in a file, and its first byte, counted from the end of the head."""

    array: StoredArray
    start: int

    @property
    def stop(self) -> int:
        """The byte after its last one."""
        return self.start + self.array.nbytes


def build_head(arrays: Mapping[str, StoredArray]) -> tuple[bytes, list[str]]:
    """Return the head of a file with these arrays, length included, and the order in which they follow.

    Wide elements come first, so that every array is aligned for its elements wherever the file is mapped.

    Raises:
        KeepError: The format does not allow such a key, or as many of them.
    """
    for key in arrays:
        _check_key(key)
    order = sorted(arrays, key=lambda key: (-arrays[key].element_type.itemsize, key))
    content: dict[str, Any] = {_METADATA: {"format": "np"}}
    true_dtypes = {}
    start = 0
    for key in order:
        name, shape = _encode_dtype(arrays[key])
        stop = start + arrays[key].nbytes
        content[key] = {"dtype": name, "shape": shape, "data_offsets": [start, stop]}
        if _decode_dtype(name, shape, None) != arrays[key]:
            true_dtypes[key] = arrays[key].dtype
        start = stop
    if true_dtypes:
        content[_METADATA][_TRUE_DTYPES] = compact(true_dtypes).decode()
    text = compact(content)
    text += b" " * (-(LENGTH.size + len(text)) % _ALIGNMENT)
    if len(text) > LONGEST:
        raise KeepError(
            f"{len(arrays)} arrays need a head of {len(text)} bytes; the format allows {LONGEST}: spread them "
            "over more shards, or give them shorter names"
        )
    return LENGTH.pack(len(text)) + text, order


def read_head(text: bytes, payload: int) -> dict[str, ArrayOffset]:
    """Return where each array lies, in the order of the file.

    Args:
        text: The head without its length.
        payload: How many bytes follow.

    Raises:
        KeepError: The head is malformed, or does not fit the bytes that follow.
    """
    entries = JsonField(parse_json(text), "head").members()
    metadata = entries.pop(_METADATA, JsonField({})).members()
    true_dtypes = _true_dtypes(metadata)
    offsets = {key: _offset(field, true_dtypes.pop(key, None)) for key, field in entries.items()}
    if true_dtypes:
        raise KeepError(
            f"the head gives dtypes for arrays that it does not have: {excerpt(sorted(true_dtypes))}"
        )
    ordered = sorted(offsets.items(), key=lambda item: (item[1].start, item[1].stop))
    end = 0
    for key, offset in ordered:
        if offset.start != end:
            raise KeepError(f"the array {excerpt(key)} begins at byte {offset.start}; it must begin at {end}")
        end = offset.stop
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
        f"an array in a shard cannot be called {excerpt(key)}; it must be text, not empty, not {_METADATA!r}, "
        "and without halves of characters (surrogates)"
    )


def _true_dtypes(metadata: Mapping[str, JsonField]) -> dict[str, str]:
    if _TRUE_DTYPES not in metadata:
        return {}
    text = metadata[_TRUE_DTYPES].text()
    dtypes = JsonField(
        parse_json(text.encode(errors="surrogatepass")), f"head.{_METADATA}.{_TRUE_DTYPES}"
    ).members()
    return {key: dtype.text() for key, dtype in dtypes.items()}


def _offset(field: JsonField, true_dtype: str | None) -> ArrayOffset:
    parts = field.exactly({"dtype", "shape", "data_offsets"})
    shape = [length.whole() for length in parts["shape"].items()]
    offsets = [offset.whole() for offset in parts["data_offsets"].items()]
    array = _decode_dtype(parts["dtype"].text(), shape, true_dtype)
    if array is None or len(offsets) != 2 or offsets[0] + array.nbytes != offsets[1]:
        raise field.error("an array whose dtype, shape and offsets fit together")
    return ArrayOffset(array, offsets[0])


def _encode_dtype(array: StoredArray) -> tuple[str, list[int]]:
    """Return the format's dtype and shape for an array.

    A dtype that the format lacks is stored as U8, with one more axis: the bytes of an element.
    """
    if array.dtype in DTYPE_NAMES:
        return DTYPE_NAMES[array.dtype], list(array.shape)
    return "U8", [*array.shape, array.element_type.itemsize]


def _decode_dtype(name: str, shape: list[int], true_dtype: str | None) -> StoredArray | None:
    """Return the array that `_encode_dtype` was called with; `None` if there is no such array."""
    dtype = _DTYPES.get(name) if true_dtype is None else true_dtype
    if dtype is None:
        return None
    array = StoredArray(tuple(shape if true_dtype is None else shape[:-1]), dtype)
    return array if _encode_dtype(array) == (name, shape) else None
