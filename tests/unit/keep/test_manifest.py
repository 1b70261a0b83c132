"""Manifests: what they say comes back, and what cannot be is refused with the wrong part shown."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.errors import KeepError
from stratagem.keep import Manifest, ShardRecord, StoredArray, TensorEntry, TensorPiece


def recorded(shard: str, **arrays: tuple[tuple[int, ...], str]) -> ShardRecord:
    described = {key: StoredArray(shape, dtype) for key, (shape, dtype) in arrays.items()}
    return ShardRecord(f"{shard}.safetensors", 100, "ab" * 32, described)


FIRST = recorded("ps-0", top=((6, 4), "float32"), count=((), "int64"))
SECOND = recorded("ps-1", bottom=((4, 4), "float32"), empty=((0, 3), "int8"))
TABLE = TensorEntry(
    (10, 4), "float32", [TensorPiece("ps-0", "top", 0, 6), TensorPiece("ps-1", "bottom", 6, 10)]
)
TENSORS = {
    "table": TABLE,
    "count": TensorEntry((), "int64", [TensorPiece("ps-0", "count", 0, 1)]),
    "empty": TensorEntry((0, 3), "int8", [TensorPiece("ps-1", "empty", 0, 0)]),
}
WHOLE = Manifest(12, [FIRST, SECOND], TENSORS, {"seeds": [1, 2.5, None, True, "é"], "deep": {"er": {}}})


def test_what_it_says_comes_back() -> None:
    again = Manifest.from_bytes(WHOLE.to_bytes())
    assert again == WHOLE
    assert list(again.tensors) == ["table", "count", "empty"]
    assert again.meta["seeds"] == [1, 2.5, None, True, "é"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSON, max_size=4), st.integers(0, 10**12 - 1))
def test_meta_is_free(meta: dict[str, Any], step: int) -> None:
    again = Manifest.from_bytes(Manifest(step, [], {}, meta).to_bytes())
    assert (again.step, again.meta) == (step, meta)


def test_meta_is_a_copy_with_lists_for_tuples() -> None:
    inner = [1]
    manifest = Manifest(0, [], {}, {"table": (inner, 2)})
    inner.append(5)
    assert manifest.meta == {"table": [[1], 2]}


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        ({"a": [1, {"b": np.int64(3)}]}, "meta['a'][1]['b'] is np.int64(3), a int64"),
        ({"a": float("nan")}, "meta['a'] is nan"),
        ({"a": b"bytes"}, "meta['a'] is b'bytes', a bytes"),
        ({"a": {3: 4}}, "meta['a'] has the key 3; keys must be text, such as '3'"),
    ],
)
def test_meta_that_json_cannot_carry(meta: dict[str, Any], words: str) -> None:
    with pytest.raises(KeepError) as caught:
        Manifest(0, [], {}, meta)
    assert words in str(caught.value)


def test_meta_that_has_itself_in_it() -> None:
    meta: dict[str, Any] = {}
    meta["again"] = meta
    with pytest.raises(KeepError, match="nested deeper than 32"):
        Manifest(0, [], {}, meta)


def test_pieces_may_come_in_any_order() -> None:
    assert replace(TABLE, pieces=list(reversed(TABLE.pieces))) == TABLE


def test_joined() -> None:
    assert TensorEntry.join([(FIRST, "top"), (SECOND, "bottom")]) == TABLE
    assert TensorEntry.join([(FIRST, "count")]) == TENSORS["count"]
    assert TensorEntry.join([(SECOND, "empty")]) == TENSORS["empty"]
    with pytest.raises(KeepError, match=r"ps-0.safetensors has no array 'side'; it has \['count', 'top'\]"):
        TensorEntry.join([(FIRST, "side")])
    with pytest.raises(
        KeepError, match=r"'empty' of ps-1.* is int8\[0, 3\] and cannot be stacked under float32\[6, 4\]"
    ):
        TensorEntry.join([(FIRST, "top"), (SECOND, "empty")])
    with pytest.raises(KeepError, match="cannot be stacked under"):
        TensorEntry.join([(FIRST, "count"), (FIRST, "count")])
    with pytest.raises(KeepError, match="no parts"):
        TensorEntry.join([])


TOP, BOTTOM = TABLE.pieces


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (replace(TABLE, pieces=[]), "tensor 'it', float32[10, 4]: its pieces end at row 0 of 10"),
        (replace(TABLE, pieces=[TOP]), "its pieces end at row 6 of 10"),
        (replace(TABLE, pieces=[BOTTOM]), "rows 6 to 10 leave a gap before them; the next row is 0"),
        (replace(TABLE, shape=(11, 4)), "its pieces end at row 10 of 11"),
        (replace(TABLE, shape=(9, 4)), "its pieces end at row 10 of 9"),
        (
            replace(TABLE, pieces=[TOP, replace(BOTTOM, start_row=5, stop_row=9)]),
            "rows 5 to 9 overlap with those before; the next row is 6",
        ),
        (replace(TABLE, pieces=[TOP, TOP, BOTTOM]), "rows 0 to 6 overlap with those before"),
        (
            replace(TABLE, pieces=[TOP, replace(BOTTOM, stop_row=9)]),
            "of shard 'ps-1', which is float32[4, 4]",
        ),
        (replace(TABLE, pieces=[TOP, replace(BOTTOM, stop_row=2)]), "rows 6 to 2 are in 'bottom'"),
        (
            replace(TABLE, pieces=[TOP, replace(BOTTOM, shard="ps-7")]),
            "in shard 'ps-7'; there are ['ps-0', 'ps-1']",
        ),
        (replace(TABLE, pieces=[TOP, replace(BOTTOM, key="w")]), "in 'w', which shard 'ps-1' does not have"),
        (replace(TABLE, dtype="int32"), "in 'top' of shard 'ps-0', which is float32[6, 4]"),
        (replace(TABLE, shape=(10, 5)), "which is float32[6, 4]"),
        (replace(TENSORS["count"], shape=(1,)), "which is int64[]"),
        (replace(TENSORS["empty"], shape=()), "of shard 'ps-1', which is int8[0, 3]"),
        (TensorEntry((), "float32", [TOP]), "which is float32[6, 4]"),
        (replace(TENSORS["empty"], pieces=[]), "its pieces end at row 0 of 0"),
    ],
)
def test_pieces_that_do_not_make_up_the_tensor(entry: TensorEntry, words: str) -> None:
    with pytest.raises(KeepError) as caught:
        Manifest(1, [FIRST, SECOND], {"it": entry})
    assert words in str(caught.value)
    assert "tensor 'it'" in str(caught.value)


def test_steps_and_shards_that_cannot_be() -> None:
    for step in (-1, 10**12, 1.0, True, np.int64(3), None):
        with pytest.raises(KeepError, match="a snapshot cannot be at step"):
            Manifest(step, [], {})  # type: ignore[arg-type]
    with pytest.raises(KeepError, match="'ps-0' is recorded twice"):
        Manifest(1, [FIRST, FIRST], {})
    with pytest.raises(KeepError, match="version is 2; this release of Stratagem reads version 1"):
        Manifest(1, [], {}, version=2)


Change = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda whole: whole.update(format="other"), "it is not the manifest of a snapshot"),
        (lambda whole: whole.pop("format"), "it is not the manifest of a snapshot"),
        (
            lambda whole: whole.update(version=2, news=[]),
            "version is 2; this release of Stratagem reads version 1",
        ),
        (lambda whole: whole.update(version="1"), "manifest.version is '1'"),
        (lambda whole: whole.pop("version"), "version is None"),
        (lambda whole: whole.pop("shards"), "manifest has no shards"),
        (lambda whole: whole.pop("meta"), "manifest has no meta"),
        (lambda whole: whole.pop("digest"), "manifest has no digest"),
        (lambda whole: whole.update(more=1), "manifest has ['more'], which is not known"),
        (lambda whole: whole.update(step=-1), "manifest.step is -1"),
        (lambda whole: whole.update(step=13), "it does not agree with its own digest"),
        (lambda whole: whole.update(digest="00" * 32), "it does not agree with its own digest"),
        (lambda whole: whole["meta"].update(new=1), "it does not agree with its own digest"),
        (lambda whole: whole.update(meta=[]), "manifest.meta is []; it must be an object"),
        (lambda whole: whole.update(tensors=[]), "manifest.tensors is []; it must be an object"),
        (lambda whole: whole["shards"][1].pop("digest"), "manifest.shards[1] has no digest"),
        (
            lambda whole: whole["shards"][0].update(file="../x.safetensors"),
            "'../x.safetensors' is not the name",
        ),
        (lambda whole: whole["shards"].pop(), "in shard 'ps-1'; there are ['ps-0']"),
        (lambda whole: whole["tensors"]["table"].pop("dtype"), "manifest.tensors.table has no dtype"),
        (
            lambda whole: whole["tensors"]["table"]["pieces"][1].pop(),
            "manifest.tensors.table.pieces[1] is ['ps-1', 'bottom', 6]; it must be [shard, key, start_row, stop_row]",
        ),
        (
            lambda whole: whole["tensors"]["table"]["pieces"][1].__setitem__(2, "6"),
            "manifest.tensors.table.pieces[1][2] is '6'; it must be a whole number",
        ),
        (
            lambda whole: whole["tensors"]["table"]["pieces"].reverse(),
            "it does not agree with its own digest",
        ),
    ],
)
def test_manifests_that_cannot_be(change: Change, words: str) -> None:
    content = json.loads(WHOLE.to_bytes())
    change(content)
    with pytest.raises(KeepError) as caught:
        Manifest.from_bytes(json.dumps(content, separators=(",", ":")).encode() + b"\n")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff", b"[1]", b"7", b'{"a": NaN}', b"[" * 100_000, b"9" * 5000]
)
def test_bytes_that_are_none(data: bytes) -> None:
    with pytest.raises(KeepError):
        Manifest.from_bytes(data)


def test_truncated_or_with_any_byte_flipped() -> None:
    data = WHOLE.to_bytes()
    seeded = random.Random(3)
    for index in range(len(data)):
        with pytest.raises(KeepError):
            Manifest.from_bytes(data[:index])
        damaged = bytearray(data)
        damaged[index] ^= 1 << seeded.randrange(8)
        with pytest.raises(KeepError):
            Manifest.from_bytes(bytes(damaged))
