"""How the dtypes of JAX are called in a safetensors file, and how those are stored that have no name there."""

from typing import Final

from stratagem.keep.stored import StoredArray

# What every version of the library since 0.5 reads: one name that it does not know makes it refuse the file.
NAMES: Final = {
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
_DTYPES: Final = {name: dtype for dtype, name in NAMES.items()}
TRUE_DTYPES: Final = "stratagem.dtypes"
"""The file's metadata of this name is a JSON object: for each array stored as bytes, its dtype."""


def as_stored(array: StoredArray) -> tuple[str, list[int]]:
    """The format's dtype and shape for an array.

    A dtype that the format lacks is stored as U8, with one more axis: the bytes of an element.
    """
    if array.dtype in NAMES:
        return NAMES[array.dtype], list(array.shape)
    return "U8", [*array.shape, array.element_type.itemsize]


def from_stored(name: str, shape: list[int], true_dtype: str | None) -> StoredArray | None:
    """What `as_stored` was given; `None` if it cannot have been that."""
    dtype = _DTYPES.get(name) if true_dtype is None else true_dtype
    if dtype is None:
        return None
    array = StoredArray(tuple(shape if true_dtype is None else shape[:-1]), dtype)
    return array if as_stored(array) == (name, shape) else None
