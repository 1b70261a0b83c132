"""Shard files: every dtype comes back to the last bit, and the safetensors library reads them too."""

import hashlib
import json
import os
import resource
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import msgpack
import numpy as np
import pytest
import safetensors
from safetensors.numpy import load_file, save_file

from stratagem.errors import KeepError
from stratagem.keep import ShardRecord, read_shard, verify_shard, write_shard
from stratagem.keep.safetensors import DTYPE_NAMES, LENGTH
from stratagem.keep.shard_files import CHUNK
from stratagem.runtime.wire.arrays import ALIGNMENT, dtype_names
from unit.keep.samples import noise, same

SHAPES = [(), (0,), (1,), (3, 0, 2), (5, 7), (129, 3)]


def opened(path: Path) -> dict[str, dict[str, Any]]:
    """The file as the safetensors library reads it: dtype, shape and bytes of every array."""
    return dict(safetensors.deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("dtype", dtype_names())
def test_every_dtype_comes_back_to_the_last_bit(tmp_path: Path, dtype: str) -> None:
    tensors = {f"shape {shape}": noise(dtype, shape) for shape in SHAPES}
    record = write_shard(tmp_path, "all", tensors, durable=False)
    found = read_shard(tmp_path, record)
    assert found.keys() == tensors.keys()
    for key, array in tensors.items():
        assert same(found[key], array)
    library = opened(tmp_path / "all.safetensors")
    assert library.keys() == tensors.keys()
    for key, array in tensors.items():
        assert bytes(library[key]["data"]) == array.tobytes()
        assert library[key]["dtype"] == DTYPE_NAMES.get(dtype, "U8")
        tail = [] if dtype in DTYPE_NAMES else [array.dtype.itemsize]
        assert list(library[key]["shape"]) == [*array.shape, *tail]


def test_all_dtypes_in_one_file(tmp_path: Path) -> None:
    tensors = {f"{dtype} {shape}": noise(dtype, shape) for dtype in dtype_names() for shape in SHAPES}
    found = read_shard(tmp_path, write_shard(tmp_path, "all", tensors, durable=False))
    assert all(same(found[key], array) for key, array in tensors.items())
    assert opened(tmp_path / "all.safetensors").keys() == tensors.keys()


def test_the_plain_library_opens_common_dtypes(tmp_path: Path) -> None:
    common = [dtype for dtype in DTYPE_NAMES if not dtype.startswith(("bfloat", "float8"))]
    tensors = {dtype: noise(dtype, (4, 5)) for dtype in common}
    write_shard(tmp_path, "all", tensors, durable=False)
    found = load_file(tmp_path / "all.safetensors")
    assert found.keys() == tensors.keys()
    assert all(same(found[key], array) for key, array in tensors.items())


def test_a_file_of_the_plain_library_is_read(tmp_path: Path) -> None:
    tensors = {"w": noise("float32", (6, 2)), "b": noise("int8", (3,)), "s": noise("float64", ())}
    save_file(tensors, tmp_path / "theirs.safetensors", {"whose": "not ours"})
    data = (tmp_path / "theirs.safetensors").read_bytes()
    ours = write_shard(tmp_path, "ours", tensors, durable=False)
    digest = hashlib.blake2b(data, digest_size=32).hexdigest()
    record = ShardRecord("theirs.safetensors", len(data), digest, ours.arrays)
    found = read_shard(tmp_path, record)
    assert all(same(found[key], array) for key, array in tensors.items())


def test_what_is_read_is_writable_and_aligned(tmp_path: Path) -> None:
    tensors = {"a": noise("bfloat16", (3, 5)), "b": noise("uint8", (7,)), "c": noise("complex128", (2,))}
    for array in read_shard(tmp_path, write_shard(tmp_path, "all", tensors)).values():
        assert array.ctypes.data % ALIGNMENT == 0
        array[...] = 0


def test_arrays_are_aligned_in_the_file(tmp_path: Path) -> None:
    tensors = {name: noise(name, (3,)) for name in ("int8", "float64", "bfloat16", "float32", "bool")}
    write_shard(tmp_path, "all", tensors, durable=False)
    data = (tmp_path / "all.safetensors").read_bytes()
    (length,) = LENGTH.unpack(data[: LENGTH.size])
    assert (LENGTH.size + length) % ALIGNMENT == 0
    head = json.loads(data[LENGTH.size :][:length])
    for name, array in tensors.items():
        assert head[name]["data_offsets"][0] % array.dtype.itemsize == 0


def test_only_the_keys_asked_for_in_their_order(tmp_path: Path) -> None:
    tensors = {key: noise("float32", (CHUNK // 4 + 3,), seed) for seed, key in enumerate("abc")}
    record = write_shard(tmp_path, "all", tensors, durable=False)
    found = read_shard(tmp_path, record, ["c", "a"])
    assert list(found) == ["c", "a"]
    assert all(same(found[key], tensors[key]) for key in found)
    with pytest.raises(KeepError, match=r"all.safetensors has no array 'd'; it has \['a', 'b', 'c'\]"):
        read_shard(tmp_path, record, ["d"])


def test_a_shard_without_arrays(tmp_path: Path) -> None:
    record = write_shard(tmp_path, "none", {}, durable=False)
    assert read_shard(tmp_path, record) == {}
    assert load_file(tmp_path / "none.safetensors") == {}


def test_arrays_that_do_not_lie_in_one_piece_or_in_this_byte_order(tmp_path: Path) -> None:
    whole = np.arange(24, dtype=np.int32).reshape(4, 6)
    tensors: dict[str, Any] = {
        "turned": whole.T,
        "every second": whole[:, ::2],
        "swapped": whole.astype(">i4"),
        "number": 7,
    }
    found = read_shard(tmp_path, write_shard(tmp_path, "all", tensors, durable=False))
    for key, value in tensors.items():
        assert found[key].dtype.isnative
        assert np.array_equal(found[key], value)


def test_the_record_is_plain_and_travels(tmp_path: Path) -> None:
    tensors = {"w": noise("bfloat16", (2, 3)), "n": noise("complex64", ())}
    record = write_shard(tmp_path, "ps-0", tensors, durable=False)
    data = (tmp_path / "ps-0.safetensors").read_bytes()
    assert (record.file, record.shard, record.nbytes) == ("ps-0.safetensors", "ps-0", len(data))
    assert record.digest == hashlib.blake2b(data, digest_size=32).hexdigest()
    assert ShardRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record
    assert ShardRecord.from_dict(msgpack.unpackb(msgpack.packb(record.to_dict()))) == record


def test_a_shard_is_replaced_whole(tmp_path: Path) -> None:
    old = write_shard(tmp_path, "ps-0", {"w": np.zeros(3)}, durable=False)
    new = write_shard(tmp_path, "ps-0", {"w": np.ones(3)}, durable=False)
    assert np.array_equal(read_shard(tmp_path, new)["w"], np.ones(3))
    with pytest.raises(KeepError, match="digest"):
        verify_shard(tmp_path, old)
    assert [file.name for file in tmp_path.iterdir()] == ["ps-0.safetensors"]


def test_no_second_copy_in_memory(tmp_path: Path) -> None:
    tensors = {"a": np.zeros(16 * CHUNK, np.uint8), "b": np.zeros((2 * CHUNK, 8), np.uint8)[:, ::2]}
    tracemalloc.start()
    record = write_shard(tmp_path, "all", tensors, durable=False)
    _, peak = tracemalloc.get_traced_memory()
    assert peak < 10 * CHUNK  # the array that is not contiguous has 8 of them
    tracemalloc.reset_peak()
    verify_shard(tmp_path, record)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * CHUNK


@pytest.mark.parametrize("keys", [None, ["a"], []])
def test_a_small_shard_takes_little_memory_to_read(tmp_path: Path, keys: list[str] | None) -> None:
    tensors = {"a": np.zeros(100, np.uint8), "b": np.zeros(200, np.uint8)}
    record = write_shard(tmp_path, "all", tensors, durable=False)
    tracemalloc.start()
    read_shard(tmp_path, record, keys)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < CHUNK / 4


@pytest.mark.parametrize("name", ["", ".", "..", "../ps-0", "a/b", ".hidden", "a b", "é", "x" * 129, "a\n"])
def test_names_that_are_no_file_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(KeepError, match="cannot be called"):
        write_shard(tmp_path, name, {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("key", ["__metadata__", "", "half \ud800", 7])
def test_keys_that_the_format_cannot_have(tmp_path: Path, key: Any) -> None:
    with pytest.raises(KeepError, match="cannot be called"):
        write_shard(tmp_path, "all", {key: np.zeros(1)})


@pytest.mark.parametrize("key", ["a/b:0", "é 漢 😀", '"quoted"\\', "new\nline", "nul\0"])
def test_all_other_keys(tmp_path: Path, key: str) -> None:
    tensors = {key: noise("int4", (3,))}
    assert same(read_shard(tmp_path, write_shard(tmp_path, "all", tensors))[key], tensors[key])
    assert list(opened(tmp_path / "all.safetensors")) == [key]


@pytest.mark.parametrize("value", [np.array(["text"]), np.array([object()]), np.zeros(2, "M8[s]")])
def test_arrays_that_are_no_numbers(tmp_path: Path, value: Any) -> None:
    with pytest.raises(KeepError, match=r"'w': an array of dtype .* cannot be saved"):
        write_shard(tmp_path, "all", {"w": value})
    assert not list(tmp_path.iterdir())


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 * CHUNK, limits[1]))
    try:
        with pytest.raises(
            KeepError, match=r"big.safetensors cannot be written: File too large; raise the limit"
        ):
            write_shard(tmp_path, "big", {"w": np.zeros(8 * CHUNK, np.uint8)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(KeepError, match=r"nowhere/ps-0.safetensors cannot be written: No such file"):
        write_shard(tmp_path / "nowhere", "ps-0", {"w": np.zeros(1)})


def test_the_file_may_be_read_by_others(tmp_path: Path) -> None:
    write_shard(tmp_path, "ps-0", {"w": np.zeros(1)}, durable=False)
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "ps-0.safetensors").stat().st_mode & 0o777 == 0o666 & ~umask


def test_no_dtype_of_ml_dtypes_was_forgotten() -> None:
    known = {name for name in dtype_names() if hasattr(ml_dtypes, name)}
    assert {"bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "int4", "uint4", "int2"} <= known
