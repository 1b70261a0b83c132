"""Serializes Python and NumPy values as a `tf.train.Example`, without protobuf."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratagem.data.features import BYTES, FLOATS, INTEGERS, KINDS
from stratagem.data.protobuf import LENGTH_DELIMITED, encode_varint, encode_varints
from stratagem.errors import DataError

_FIRST = bytes([1 << 3 | LENGTH_DELIMITED])
_SECOND = bytes([2 << 3 | LENGTH_DELIMITED])


def make_example(values: Mapping[str, Any]) -> bytes:
    """Serialize named values as a `tf.train.Example`, which TensorFlow and `parse_example` read.

    Bytes and str become a bytes_list; bools and integers an int64_list; floating point a float_list of
    float32. Lists and arrays of these are flattened in C order. For an array as raw bytes, which is smaller
    and faster for images, give `array.tobytes()` and parse it with `RawFeature`. The same values always
    give the same bytes: names are sorted.

    Example:
        >>> example = make_example({"label": 3, "scores": [0.5, 0.25], "name": "three"})
        >>> from stratagem.data import FixedLenFeature, parse_example
        >>> parse_example(example, {"label": FixedLenFeature((), np.int64)})
        {'label': array(3)}
    """
    entries = []
    for name in sorted(values, key=_check_name):
        feature = _feature(name, values[name])
        entries.append(_first(_first(name.encode()) + _SECOND + encode_varint(len(feature)) + feature))
    return _first(b"".join(entries))


def _check_name(name: object) -> str:
    if not isinstance(name, str):
        raise DataError(f"a feature's name is a str, not {name!r}")
    return name


def _first(data: bytes) -> bytes:
    """Return data as field 1 of a message."""
    return _FIRST + encode_varint(len(data)) + data


def _feature(name: str, value: Any) -> bytes:
    kind, content = _content(name, value)
    if kind is None:
        return b""
    return bytes([KINDS.index(kind) + 1 << 3 | LENGTH_DELIMITED]) + encode_varint(len(content)) + content


def _content(name: str, value: Any) -> tuple[str | None, bytes]:
    """Return the kind of list for a value, and the list as a message."""
    if isinstance(value, bytes | bytearray | memoryview | str):
        return BYTES, _first(_as_bytes(name, value))
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "SU":
        # NumPy has already dropped trailing zero bytes of such arrays.
        if value.dtype.kind == "S":
            raise DataError(
                f"feature {name!r} has dtype {value.dtype}, which loses trailing zero bytes; give a list of bytes"
            )
        value = value.reshape(-1).tolist()
    elif isinstance(value, np.ndarray) and value.dtype == object:
        value = value.reshape(-1).tolist()
    if isinstance(value, list | tuple) and any(
        isinstance(each, bytes | bytearray | memoryview | str) for each in value
    ):
        return BYTES, b"".join(_first(_as_bytes(name, each)) for each in value)
    if isinstance(value, list | tuple) and not value:
        return None, b""
    array = _numbers(name, value)
    if array.dtype.kind in "biu":
        return INTEGERS, _packed(encode_varints(_as_integers(name, array)))
    return FLOATS, _packed(_as_floats(name, array).tobytes())


def _packed(content: bytes) -> bytes:
    return _first(content) if content else b""


def _as_bytes(name: str, value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise DataError(
        f"feature {name!r} mixes bytes with {type(value).__name__}; a feature has one kind of values"
    )


def _numbers(name: str, value: Any) -> NDArray[Any]:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise DataError(f"feature {name!r}: {error}; give an array, or a list of equal parts") from error
    # ml_dtypes' bfloat16 has kind "V", although it is a number.
    is_extended_float = array.dtype.kind == "V" and np.can_cast(array.dtype, np.float32)
    if array.dtype.kind not in "biuf" and not is_extended_float:
        raise DataError(
            f"feature {name!r} is {type(value).__name__} ({array.dtype}); an Example holds bytes, str, bools, "
            f"integers and floats, and lists and arrays of these"
        )
    return array.reshape(-1)


def _as_integers(name: str, array: NDArray[Any]) -> NDArray[np.int64]:
    if array.dtype == np.uint64 and len(array) and array.max() > np.iinfo(np.int64).max:
        raise DataError(f"feature {name!r} has {array.max()}, which an int64_list cannot hold")
    return array.astype(np.int64)


def _as_floats(name: str, array: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        floats = array.astype("<f4")
    if array.dtype.itemsize > 4 and bool((np.isinf(floats) & ~np.isinf(array)).any()):
        raise DataError(
            f"feature {name!r} has a number too large for float32, which an Example holds; scale it"
        )
    return floats
