"""IDX files of every type, compressed or not, and files that are none."""

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stratagem.data import read_idx
from stratagem.errors import DataError

CODES = {"uint8": 0x08, "int8": 0x09, "int16": 0x0B, "int32": 0x0C, "float32": 0x0D, "float64": 0x0E}
SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def idx(array: np.ndarray[Any, Any]) -> bytes:
    header = bytes([0, 0, CODES[array.dtype.name], array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.mark.parametrize("dtype", CODES)
@SHARED
@given(data=st.data(), is_compressed=st.booleans())
def test_round_trip(tmp_path: Path, dtype: str, data: st.DataObject, is_compressed: bool) -> None:
    array = data.draw(hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)))
    path = tmp_path / "array"
    path.write_bytes(gzip.compress(idx(array)) if is_compressed else idx(array))
    found = read_idx(path)
    assert found.dtype == np.dtype(dtype) and found.dtype.isnative
    np.testing.assert_array_equal(found, array, strict=True)
    assert found.flags.writeable


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "begins with nothing"),
        (b"\0\0\x0a\x01" + bytes(8), "begins with 00000a01; an IDX file begins with 0000, one of 0x08"),
        (b"PK\x03\x04", "begins with 504b0304"),
        (b"\0\0\x08\x03\0\0\0\x01", "ends within the header of 3 sizes"),
        (
            b"\0\0\x08\x01\0\0\0\x05abc",
            r"shape \(5,\) of uint8 takes 5 bytes after the header, and the file has only 3",
        ),
        (b"\0\0\x08\x01\0\0\0\x02abc", "the file has more"),
        (b"\0\0\x0e\x04" + b"\xff" * 16 + b"x", "the file has only 1"),
        (b"\0\0\x08\x41" + bytes(4 * 65), "cannot be an array of NumPy's"),
    ],
)
@pytest.mark.parametrize("is_compressed", [False, True])
def test_other_files(tmp_path: Path, content: bytes, problem: str, is_compressed: bool) -> None:
    path = tmp_path / "other"
    path.write_bytes(gzip.compress(content) if is_compressed else content)
    with pytest.raises(DataError, match=f"other.*{problem}"):
        read_idx(path)


def test_damaged_gzip(tmp_path: Path) -> None:
    path = tmp_path / "cut"
    path.write_bytes(gzip.compress(idx(np.arange(1000, dtype=np.int32)))[:-20])
    with pytest.raises(DataError, match="gzip data ends too early"):
        read_idx(path)
    with pytest.raises(DataError, match="cannot read"):
        read_idx(tmp_path / "missing")


@SHARED
@given(
    content=st.binary(max_size=100),
    start=st.sampled_from([b"", b"\0\0\x08\x01", b"\0\0\x0e\x02", b"\x1f\x8b"]),
)
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes, start: bytes) -> None:
    path = tmp_path / "any"
    path.write_bytes(start + content)
    try:
        read_idx(path)
    except DataError as error:
        assert str(path) in str(error)
