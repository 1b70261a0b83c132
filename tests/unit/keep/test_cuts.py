"""Cuts: finished or not, read in pieces, skipped when damaged, removed when old."""

import logging
from pathlib import Path

import numpy as np
import pytest

from stratagem.errors import KeepError
from stratagem.keep import Cut, Cuts, Manifest, write_shard
from stratagem.keep.retention import kept
from stratagem.runtime.wire.arrays import ALIGNMENT
from unit.keep.samples import same, state, write_cut


@pytest.fixture
def cuts(tmp_path: Path) -> Cuts:
    return Cuts(tmp_path / "run" / "snapshots", durable=False)


def table_of(step: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.arange(40, dtype=np.float32).reshape(10, 4) + np.float32(step)


def flip(path: Path, index: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[index] ^= 1
    path.write_bytes(data)


def test_nothing_is_there_before_the_first_cut(cuts: Cuts) -> None:
    assert (cuts.steps(), cuts.latest(), cuts.newest_readable()) == ([], None, None)
    assert list(cuts.readable()) == []
    assert cuts.prune(1) == []
    assert not cuts.root.exists()


@pytest.mark.parametrize("durable", [True, False])
def test_a_cut_comes_back(tmp_path: Path, durable: bool) -> None:
    cuts = Cuts(tmp_path / "deep" / "down", durable=durable)
    directory = write_cut(cuts, 123)
    assert directory == cuts.path(123) == cuts.root / "step-000000000123"
    assert sorted(file.name for file in directory.iterdir()) == [
        "manifest.json",
        "ps-0.safetensors",
        "ps-1.safetensors",
    ]
    assert (cuts.steps(), cuts.latest()) == ([123], 123)
    cut = cuts.open(123)
    assert (cut.step, cut.names) == (123, ["table", "count", "bias"])
    assert cut.manifest.meta == {"applied": {"worker/0": [123, 7]}}
    assert same(cut.read("table"), table_of(123))
    assert same(cut.read("count"), np.array(123))
    assert same(cut.read("bias"), np.full(3, 123, np.int16))
    cut.verify()


def test_what_is_read_is_new_writable_and_aligned(cuts: Cuts) -> None:
    write_cut(cuts, 1)
    cut = cuts.open(1)
    for array in (cut.read("table"), cut.read("bias"), cut.read_rows("table", 3, 8)):
        assert array.ctypes.data % ALIGNMENT == 0
        array[...] = 0
    assert same(cut.read("table"), table_of(1))


@pytest.mark.parametrize("check_digests", [True, False])
def test_rows(cuts: Cuts, check_digests: bool) -> None:
    write_cut(cuts, 5)
    cut = cuts.open(5, check_digests=check_digests)
    for start in range(11):
        for stop in range(start, 11):
            assert same(cut.read_rows("table", start, stop), table_of(5)[start:stop])


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (0, 11), (11, 11)])
def test_rows_that_are_not_there(cuts: Cuts, start: int, stop: int) -> None:
    write_cut(cuts, 5)
    with pytest.raises(
        KeepError, match=rf"'table' at step 5 is float32\[10, 4\] and has no rows {start} to {stop}"
    ):
        cuts.open(5).read_rows("table", start, stop)


def test_a_scalar_has_no_rows(cuts: Cuts) -> None:
    write_cut(cuts, 5)
    with pytest.raises(KeepError, match="a scalar is read whole"):
        cuts.open(5).read_rows("count", 0, 1)


def test_tensors_that_are_not_there(cuts: Cuts) -> None:
    write_cut(cuts, 5)
    with pytest.raises(
        KeepError, match=r"no tensor 'tabel' at step 5; there are \['table', 'count', 'bias'\]"
    ):
        cuts.open(5).read("tabel")


def test_only_the_shards_that_are_needed_are_touched(cuts: Cuts) -> None:
    (write_cut(cuts, 5) / "ps-1.safetensors").unlink()
    cut = cuts.open(5)
    cut.verify(["ps-0"])
    assert same(cut.read("count"), np.array(5))
    assert same(cut.read_rows("table", 0, 6), table_of(5)[:6])
    for name in ("bias", "table"):
        with pytest.raises(KeepError, match=r"ps-1.safetensors cannot be read: No such file"):
            cut.read(name)
    with pytest.raises(KeepError, match=r"no shard 'ps-2' at step 5; there are \['ps-0', 'ps-1'\]"):
        cut.verify(["ps-2"])


def test_a_flipped_byte_is_found_before_anything_is_read(cuts: Cuts) -> None:
    flip(write_cut(cuts, 5) / "ps-0.safetensors")
    with pytest.raises(KeepError, match=r"ps-0.safetensors is damaged: it is a file with the digest"):
        cuts.open(5).read("count")
    with pytest.raises(KeepError, match="digest"):
        cuts.open(5).read_rows("table", 0, 1)
    with pytest.raises(KeepError, match="digest"):
        cuts.open(5).verify()
    assert cuts.open(5).read_rows("table", 6, 10).shape == (4, 4)
    assert cuts.open(5, check_digests=False).read_rows("table", 0, 1).shape == (1, 4)


def test_without_a_manifest_a_cut_is_unfinished(cuts: Cuts) -> None:
    write_cut(cuts, 5)
    write_shard(cuts.directory(6), "ps-0", state(6)[0])
    assert (cuts.steps(), cuts.latest()) == ([5], 5)
    newest = cuts.newest_readable()
    assert newest is not None and newest.step == 5
    with pytest.raises(
        KeepError, match=r"step-000000000006 is no finished cut; there are those of steps \[5\]"
    ):
        cuts.open(6)


def test_what_else_lies_there_is_no_cut(cuts: Cuts) -> None:
    write_cut(cuts, 5)
    for name in ("step-7", "step-0000000000007", "step-00000000000x", "STEP-000000000007", "notes"):
        (cuts.root / name).mkdir()
        (cuts.root / name / "manifest.json").write_text("{}")
    (cuts.root / "step-000000000008").write_text("a file")
    assert cuts.steps() == [5]
    cuts.prune(1)
    assert (cuts.root / "step-7" / "manifest.json").exists()


def test_steps_only_grow(cuts: Cuts) -> None:
    write_cut(cuts, 5)
    record = cuts.open(5).manifest.shards[0]
    for step in (4, 5):
        with pytest.raises(KeepError, match=f"a finished cut of step 5, so none can be made at step {step}"):
            cuts.directory(step)
        with pytest.raises(KeepError, match="rewind to it first"):
            cuts.commit(Manifest(step, [record], {}))
    with pytest.raises(KeepError, match=r"is a finished cut, which ps-0.safetensors would damage"):
        write_shard(cuts.path(5), "ps-0", {})
    cuts.open(5).verify()
    assert cuts.steps() == [5]


def test_rewind(cuts: Cuts) -> None:
    for step in (1, 5, 9):
        write_cut(cuts, step)
    cuts.directory(12)
    assert cuts.rewind(5) == [12, 9]
    assert cuts.steps() == [1, 5]
    write_cut(cuts, 9)
    cuts.open(9).verify()


def test_an_unfinished_cut_is_made_again(cuts: Cuts) -> None:
    write_shard(cuts.directory(5), "ps-0", {"old": np.zeros(1000)})
    (cuts.path(5) / "ps-1.safetensors.1-a.partial").write_bytes(b"half")
    write_cut(cuts, 5)
    cuts.open(5).verify()


# ------------------------------------------------------------------ damage


def missing(directory: Path) -> None:
    (directory / "ps-1.safetensors").unlink()


def truncated(directory: Path) -> None:
    path = directory / "ps-1.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def flipped(directory: Path) -> None:
    flip(directory / "ps-0.safetensors", -3)


def empty_manifest(directory: Path) -> None:
    (directory / "manifest.json").write_bytes(b"")


def flipped_manifest(directory: Path) -> None:
    flip(directory / "manifest.json", 40)


def manifest_of_another(directory: Path) -> None:
    other = directory.with_name("step-000000000100") / "manifest.json"
    (directory / "manifest.json").write_bytes(other.read_bytes())


WORDS = {
    missing: "ps-1.safetensors cannot be read: No such file",
    truncated: "ps-1.safetensors is damaged: it is ",
    flipped: "ps-0.safetensors is damaged: it is a file with the digest",
    empty_manifest: "manifest.json is not as it should be: it is not JSON",
    flipped_manifest: "manifest.json is not as it should be: ",
    manifest_of_another: "manifest.json is not as it should be: it is that of step 100",
}


@pytest.mark.parametrize("damage", WORDS)
def test_a_damaged_cut_is_skipped_and_the_log_says_so(
    cuts: Cuts, caplog: pytest.LogCaptureFixture, damage: object
) -> None:
    assert callable(damage)
    for step in (100, 200, 300):
        directory = write_cut(cuts, step)
    damage(directory)
    with caplog.at_level(logging.WARNING, "stratagem"):
        newest = cuts.newest_readable()
    assert newest is not None and newest.step == 200
    assert same(newest.read("table"), table_of(200))
    assert [record.name for record in caplog.records] == ["stratagem"]
    said = caplog.text
    assert "the cut of step 300 is skipped" in said
    assert WORDS[damage] in said
    assert "the cut of step 200 is used instead" in said
    assert cuts.steps() == [100, 200, 300]
    caplog.clear()
    assert [cut.step for cut in cuts.readable()] == [200, 100]
    assert len(caplog.records) == 1


def test_all_damaged(cuts: Cuts, caplog: pytest.LogCaptureFixture) -> None:
    for step in (1, 2):
        missing(write_cut(cuts, step))
    with pytest.raises(
        KeepError, match=r"none of the cuts in .* can be read, of steps \[1, 2\]; the log says why"
    ):
        cuts.newest_readable()
    assert caplog.text.count("and there is no older one that can be read") == 2


def test_a_check_of_ones_own(cuts: Cuts, caplog: pytest.LogCaptureFixture) -> None:
    for step in (1, 2, 3):
        missing(write_cut(cuts, step))

    def check(cut: Cut) -> None:
        cut.verify(["ps-0"])
        if cut.step == 3:
            raise KeepError("ps-1 on another host has lost it")

    newest = cuts.newest_readable(check)
    assert newest is not None and newest.step == 2
    assert "ps-1 on another host has lost it (the cut of step 2 is used instead)" in caplog.text


def test_a_cut_that_is_removed_while_one_looks_is_no_damage(
    cuts: Cuts, caplog: pytest.LogCaptureFixture
) -> None:
    write_cut(cuts, 1)

    def replaced_meanwhile(cut: Cut) -> None:
        if cut.step == 1:
            write_cut(cuts, 2)
            cuts.prune(1)
        cut.verify()

    newest = cuts.newest_readable(replaced_meanwhile)
    assert newest is not None and newest.step == 2
    assert not caplog.records


# ------------------------------------------------------------------ removing


def test_prune_keeps_the_newest_and_every_so_many(cuts: Cuts) -> None:
    for step in range(0, 100, 10):
        write_cut(cuts, step)
    assert cuts.prune(2, 40) == [10, 20, 30, 50, 60, 70]
    assert cuts.steps() == [0, 40, 80, 90]
    assert sorted(path.name for path in cuts.root.iterdir()) == [
        cuts.path(step).name for step in (0, 40, 80, 90)
    ]
    assert cuts.prune(1) == [0, 40, 80]
    assert cuts.prune(1) == []
    cuts.open(90).verify()


def test_prune_clears_what_was_left_unfinished_but_not_what_is_in_the_making(cuts: Cuts) -> None:
    write_shard(cuts.directory(5), "ps-0", {"w": np.zeros(3)})
    newest = write_cut(cuts, 10)
    (newest / "ps-0.safetensors.77-abcd.partial").write_bytes(b"half a shard")
    making = cuts.directory(20)
    (making / "ps-0.safetensors.78-abcd.partial").write_bytes(b"half a shard")
    assert cuts.prune(3) == [5]
    assert not cuts.path(5).exists()
    assert sorted(path.name for path in newest.iterdir()) == [
        "manifest.json",
        "ps-0.safetensors",
        "ps-1.safetensors",
    ]
    assert [path.name for path in making.iterdir()] == ["ps-0.safetensors.78-abcd.partial"]


def test_without_a_finished_cut_nothing_is_pruned(cuts: Cuts) -> None:
    write_shard(cuts.directory(5), "ps-0", {"w": np.zeros(3)})
    assert cuts.prune(1) == []
    assert (cuts.path(5) / "ps-0.safetensors").exists()


def test_files_of_others_stay(cuts: Cuts) -> None:
    notes = write_cut(cuts, 1) / "notes.txt"
    notes.write_text("the best so far")
    write_cut(cuts, 2)
    cuts.prune(1)
    assert cuts.steps() == [2]
    assert [path.name for path in cuts.path(1).iterdir()] == ["notes.txt"]


def test_a_cut_half_removed_is_unfinished(cuts: Cuts, caplog: pytest.LogCaptureFixture) -> None:
    write_cut(cuts, 1)
    (write_cut(cuts, 2) / "ps-0.safetensors").unlink()
    (cuts.path(2) / "ps-0.safetensors").mkdir()  # so that removing stops at it
    with pytest.raises(KeepError, match="step-000000000002 cannot be cleared: Is a directory"):
        cuts.remove(2)
    newest = cuts.newest_readable()
    assert newest is not None and newest.step == 1
    assert not caplog.records


def test_what_stays() -> None:
    assert kept([], 1) == set()
    assert kept([3, 1, 2], 1) == {3}
    assert kept([1, 2, 3], 5) == {1, 2, 3}
    assert kept([0, 100, 150, 200, 250], 1, 100) == {0, 100, 200, 250}
    for keep in (0, -1, True, 1.5, None):
        with pytest.raises(KeepError, match="at least 1: the newest cut stays"):
            kept([1], keep)  # type: ignore[arg-type]
    for every in (0, -5, "10"):
        with pytest.raises(KeepError, match="keep_every is"):
            kept([1], 1, every)  # type: ignore[arg-type]
