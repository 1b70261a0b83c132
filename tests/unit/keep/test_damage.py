"""Shard files that are not what they were: whatever has happened to one, it is refused."""

import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stratagem.errors import KeepError
from stratagem.keep import ShardRecord, StoredArray, read_shard, verify_shard, write_shard
from stratagem.keep.safetensors import LENGTH
from unit.keep.samples import noise

NAME = "ps-0.safetensors"


@pytest.fixture
def record(tmp_path: Path) -> ShardRecord:
    tensors = {"w": noise("float32", (16, 4)), "q": noise("int4", (5,)), "n": np.array(3)}
    return write_shard(tmp_path, "ps-0", tensors, durable=False)


def test_truncated_at_every_length(tmp_path: Path, record: ShardRecord) -> None:
    whole = (tmp_path / NAME).read_bytes()
    for length in range(len(whole)):
        (tmp_path / NAME).write_bytes(whole[:length])
        with pytest.raises(
            KeepError, match=rf"{NAME} is damaged: it is {length} bytes long, its record says"
        ):
            read_shard(tmp_path, record)


def test_longer_than_it_was(tmp_path: Path, record: ShardRecord) -> None:
    with (tmp_path / NAME).open("ab") as file:
        file.write(b"\0")
    with pytest.raises(
        KeepError, match=f"is {record.nbytes + 1} bytes long, its record says {record.nbytes}"
    ):
        verify_shard(tmp_path, record)


def test_any_byte_flipped(tmp_path: Path, record: ShardRecord) -> None:
    whole = (tmp_path / NAME).read_bytes()
    seeded = random.Random(1)
    for index in range(len(whole)):
        damaged = bytearray(whole)
        damaged[index] ^= 1 << seeded.randrange(8)
        (tmp_path / NAME).write_bytes(damaged)
        with pytest.raises(KeepError, match=rf"{NAME} is damaged: .*; use another snapshot"):
            read_shard(tmp_path, record, ["n"])


def test_replaced_by_noise(tmp_path: Path, record: ShardRecord) -> None:
    seeded = random.Random(2)
    for _ in range(200):
        (tmp_path / NAME).write_bytes(seeded.randbytes(record.nbytes))
        with pytest.raises(KeepError, match=f"{NAME} is damaged"):
            read_shard(tmp_path, record)


def test_missing_or_not_a_file(tmp_path: Path, record: ShardRecord) -> None:
    (tmp_path / NAME).unlink()
    with pytest.raises(KeepError, match=rf"{NAME} cannot be read: No such file or directory; it was removed"):
        read_shard(tmp_path, record)
    (tmp_path / NAME).mkdir()
    with pytest.raises(KeepError, match=f"{NAME} cannot be read: Is a directory"):
        read_shard(tmp_path, record)


def test_the_file_of_another_shard(tmp_path: Path, record: ShardRecord) -> None:
    other = write_shard(tmp_path, "ps-1", {"w": np.zeros(3)}, durable=False)
    (tmp_path / other.file).replace(tmp_path / NAME)
    with pytest.raises(KeepError, match=f"{other.nbytes} bytes long"):
        read_shard(tmp_path, record)
    with pytest.raises(KeepError, match="it is one with other arrays, its record says the 3"):
        read_shard(tmp_path, replace(record, nbytes=other.nbytes, digest=other.digest))


# A head that is wrong although the digest is right: written so, by mistake or by malice.

ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def crafted(directory: Path, head: Any, payload: bytes = b"\0" * 8) -> ShardRecord:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    data = LENGTH.pack(len(text)) + text + payload
    (directory / "bad.safetensors").write_bytes(data)
    digest = hashlib.blake2b(data, digest_size=32).hexdigest()
    return ShardRecord("bad.safetensors", len(data), digest, {"w": StoredArray((2,), "float32")})


def test_the_crafted_head_is_right_but_for_what_the_next_test_changes(tmp_path: Path) -> None:
    assert np.array_equal(read_shard(tmp_path, crafted(tmp_path, {"w": ENTRY}))["w"], np.zeros(2))


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"{", "not JSON"),
        (b"\xff\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        ([], "head is []; it must be an object"),
        ({"w": 3}, "head.w is 3; it must be an object"),
        ({"w": {"dtype": "F32", "shape": [2]}}, "head.w has no data_offsets"),
        ({"w": {**ENTRY, "extra": 1}}, "head.w has ['extra'], which is not known"),
        ({"w": {**ENTRY, "dtype": "F31"}}, "fit together"),
        ({"w": {**ENTRY, "dtype": None}}, "head.w.dtype is None; it must be text"),
        ({"w": {**ENTRY, "shape": [3]}}, "fit together"),
        ({"w": {**ENTRY, "shape": [-2]}}, "head.w.shape[0] is -2"),
        ({"w": {**ENTRY, "shape": [2.0]}}, "head.w.shape[0] is 2.0"),
        ({"w": {**ENTRY, "shape": [2**62, 4, 2]}}, "the shape"),
        ({"w": {**ENTRY, "shape": [1] * 65}}, "the shape"),
        ({"w": {**ENTRY, "data_offsets": [0]}}, "fit together"),
        ({"w": {**ENTRY, "data_offsets": [8, 0]}}, "fit together"),
        ({"w": {**ENTRY, "data_offsets": [8, 16]}}, "begins at byte 8; it must begin at 0"),
        ({"w": ENTRY, "v": ENTRY}, "begins at byte 0; it must begin at 8"),
        ({}, "the arrays take 0 bytes, but 8 follow"),
        ({"w": ENTRY, "__metadata__": {"stratagem.dtypes": "{"}}, "not JSON"),
        ({"w": ENTRY, "__metadata__": {"stratagem.dtypes": '{"v":"int4"}'}}, "that it does not have: ['v']"),
        ({"w": ENTRY, "__metadata__": {"stratagem.dtypes": '{"w":"int4"}'}}, "fit together"),
        ({"w": ENTRY, "__metadata__": {"stratagem.dtypes": '{"w":"object"}'}}, "'object' cannot be saved"),
        ({"w": {**ENTRY, "dtype": "I32"}}, "one with other arrays"),
        ({"v": ENTRY}, "one with other arrays"),
    ],
)
def test_a_head_that_cannot_be(tmp_path: Path, head: Any, words: str) -> None:
    with pytest.raises(KeepError) as caught:
        read_shard(tmp_path, crafted(tmp_path, head))
    assert "bad.safetensors is damaged" in str(caught.value)
    assert words in str(caught.value)


def test_a_head_longer_than_the_file(tmp_path: Path) -> None:
    data = LENGTH.pack(2**63) + b"{}"
    (tmp_path / "bad.safetensors").write_bytes(data)
    record = ShardRecord("bad.safetensors", len(data), hashlib.blake2b(data, digest_size=32).hexdigest(), {})
    with pytest.raises(KeepError, match=f"claims a head of {2**63} bytes"):
        read_shard(tmp_path, record)


Change = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda record: record.pop("digest"), "shard record has no digest"),
        (lambda record: record.update(more=1), "shard record has ['more'], which is not known"),
        (
            lambda record: record.update(file="../w.safetensors"),
            "'../w.safetensors' is not the name of a shard",
        ),
        (lambda record: record.update(file="/etc/passwd"), "'/etc/passwd' is not the name of a shard"),
        (lambda record: record.update(file=".safetensors"), "is not the name of a shard"),
        (lambda record: record.update(file=None), "shard record.file is None; it must be text"),
        (lambda record: record.update(nbytes=-1), "shard record.nbytes is -1"),
        (lambda record: record.update(nbytes=True), "shard record.nbytes is True"),
        (lambda record: record.update(nbytes=9), "no shard has less than 10"),
        (lambda record: record.update(digest="ab"), "the digest 'ab'; it must be 64 digits"),
        (lambda record: record.update(digest="G" * 64), "it must be 64 digits from 0 to f"),
        (lambda record: record.update(arrays=[]), "shard record.arrays is []; it must be an object"),
        (lambda record: record.update(arrays={"w": ["float32"]}), "must be [dtype, shape]"),
        (lambda record: record.update(arrays={"w": ["<f4", [1]]}), "the dtype '<f4' cannot be saved"),
        (lambda record: record.update(arrays={"w": ["int8", ["1"]]}), "shard record.arrays.w[1][0] is '1'"),
    ],
)
def test_records_that_cannot_be(record: ShardRecord, change: Change, words: str) -> None:
    plain = record.to_dict()
    change(plain)
    with pytest.raises(KeepError) as caught:
        ShardRecord.from_dict(plain)
    assert words in str(caught.value)
