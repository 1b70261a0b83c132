"""Snapshots: finished or not, read in pieces, skipped when damaged, removed when old."""

import logging
from pathlib import Path

import numpy as np
import pytest

from stratagem.errors import KeepError
from stratagem.keep import Manifest, Snapshots, StoredSnapshot, write_shard
from stratagem.keep.stored_snapshots import steps_to_keep
from stratagem.runtime.wire.arrays import ALIGNMENT
from unit.keep.samples import same, state, write_snapshot


@pytest.fixture
def snapshots(tmp_path: Path) -> Snapshots:
    return Snapshots(tmp_path / "run" / "snapshots", durable=False)


def table_of(step: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.arange(40, dtype=np.float32).reshape(10, 4) + np.float32(step)


def flip(path: Path, index: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[index] ^= 1
    path.write_bytes(data)


def test_nothing_is_there_before_the_first_snapshot(snapshots: Snapshots) -> None:
    assert (snapshots.steps(), snapshots.latest(), snapshots.newest_readable()) == ([], None, None)
    assert list(snapshots.readable()) == []
    assert snapshots.prune(1) == []
    assert not snapshots.root.exists()


@pytest.mark.parametrize("durable", [True, False])
def test_a_snapshot_comes_back(tmp_path: Path, durable: bool) -> None:
    snapshots = Snapshots(tmp_path / "deep" / "down", durable=durable)
    directory = write_snapshot(snapshots, 123)
    assert directory == snapshots.path(123) == snapshots.root / "step-000000000123"
    assert sorted(file.name for file in directory.iterdir()) == [
        "manifest.json",
        "ps-0.safetensors",
        "ps-1.safetensors",
    ]
    assert (snapshots.steps(), snapshots.latest()) == ([123], 123)
    snapshot = snapshots.open(123)
    assert (snapshot.step, snapshot.names) == (123, ["table", "count", "bias"])
    assert snapshot.manifest.meta == {"applied": {"worker/0": [123, 7]}}
    assert same(snapshot.read("table"), table_of(123))
    assert same(snapshot.read("count"), np.array(123))
    assert same(snapshot.read("bias"), np.full(3, 123, np.int16))
    snapshot.verify()


def test_what_is_read_is_new_writable_and_aligned(snapshots: Snapshots) -> None:
    write_snapshot(snapshots, 1)
    snapshot = snapshots.open(1)
    for array in (snapshot.read("table"), snapshot.read("bias"), snapshot.read_rows("table", 3, 8)):
        assert array.ctypes.data % ALIGNMENT == 0
        array[...] = 0
    assert same(snapshot.read("table"), table_of(1))


@pytest.mark.parametrize("check_digests", [True, False])
def test_rows(snapshots: Snapshots, check_digests: bool) -> None:
    write_snapshot(snapshots, 5)
    snapshot = snapshots.open(5, check_digests=check_digests)
    for start in range(11):
        for stop in range(start, 11):
            assert same(snapshot.read_rows("table", start, stop), table_of(5)[start:stop])


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (0, 11), (11, 11)])
def test_rows_that_are_not_there(snapshots: Snapshots, start: int, stop: int) -> None:
    write_snapshot(snapshots, 5)
    with pytest.raises(
        KeepError, match=rf"'table' at step 5 is float32\[10, 4\] and has no rows {start} to {stop}"
    ):
        snapshots.open(5).read_rows("table", start, stop)


def test_a_scalar_has_no_rows(snapshots: Snapshots) -> None:
    write_snapshot(snapshots, 5)
    with pytest.raises(KeepError, match="a scalar is read whole"):
        snapshots.open(5).read_rows("count", 0, 1)


def test_tensors_that_are_not_there(snapshots: Snapshots) -> None:
    write_snapshot(snapshots, 5)
    with pytest.raises(
        KeepError, match=r"no tensor 'tabel' at step 5; there are \['table', 'count', 'bias'\]"
    ):
        snapshots.open(5).read("tabel")


def test_only_the_shards_that_are_needed_are_touched(snapshots: Snapshots) -> None:
    (write_snapshot(snapshots, 5) / "ps-1.safetensors").unlink()
    snapshot = snapshots.open(5)
    snapshot.verify(["ps-0"])
    assert same(snapshot.read("count"), np.array(5))
    assert same(snapshot.read_rows("table", 0, 6), table_of(5)[:6])
    for name in ("bias", "table"):
        with pytest.raises(KeepError, match=r"ps-1.safetensors cannot be read: No such file"):
            snapshot.read(name)
    with pytest.raises(KeepError, match=r"no shard 'ps-2' at step 5; there are \['ps-0', 'ps-1'\]"):
        snapshot.verify(["ps-2"])


def test_a_flipped_byte_is_found_before_anything_is_read(snapshots: Snapshots) -> None:
    flip(write_snapshot(snapshots, 5) / "ps-0.safetensors")
    with pytest.raises(KeepError, match=r"ps-0.safetensors is damaged: it is a file with the digest"):
        snapshots.open(5).read("count")
    with pytest.raises(KeepError, match="digest"):
        snapshots.open(5).read_rows("table", 0, 1)
    with pytest.raises(KeepError, match="digest"):
        snapshots.open(5).verify()
    assert snapshots.open(5).read_rows("table", 6, 10).shape == (4, 4)
    assert snapshots.open(5, check_digests=False).read_rows("table", 0, 1).shape == (1, 4)


def test_without_a_manifest_a_snapshot_is_unfinished(snapshots: Snapshots) -> None:
    write_snapshot(snapshots, 5)
    write_shard(snapshots.directory(6), "ps-0", state(6)[0])
    assert (snapshots.steps(), snapshots.latest()) == ([5], 5)
    newest = snapshots.newest_readable()
    assert newest is not None and newest.step == 5
    with pytest.raises(
        KeepError, match=r"step-000000000006 is not a finished snapshot; there are those of steps \[5\]"
    ):
        snapshots.open(6)


def test_what_else_lies_there_is_no_snapshot(snapshots: Snapshots) -> None:
    write_snapshot(snapshots, 5)
    for name in ("step-7", "step-0000000000007", "step-00000000000x", "STEP-000000000007", "notes"):
        (snapshots.root / name).mkdir()
        (snapshots.root / name / "manifest.json").write_text("{}")
    (snapshots.root / "step-000000000008").write_text("a file")
    assert snapshots.steps() == [5]
    snapshots.prune(1)
    assert (snapshots.root / "step-7" / "manifest.json").exists()


def test_steps_only_grow(snapshots: Snapshots) -> None:
    write_snapshot(snapshots, 5)
    record = snapshots.open(5).manifest.shards[0]
    for step in (4, 5):
        with pytest.raises(
            KeepError, match=f"a finished snapshot of step 5, so none can be made at step {step}"
        ):
            snapshots.directory(step)
        with pytest.raises(KeepError, match="rewind to it first"):
            snapshots.commit(Manifest(step, [record], {}))
    with pytest.raises(KeepError, match=r"is a finished snapshot, which ps-0.safetensors would damage"):
        write_shard(snapshots.path(5), "ps-0", {})
    snapshots.open(5).verify()
    assert snapshots.steps() == [5]


def test_rewind(snapshots: Snapshots) -> None:
    for step in (1, 5, 9):
        write_snapshot(snapshots, step)
    snapshots.directory(12)
    assert snapshots.rewind(5) == [12, 9]
    assert snapshots.steps() == [1, 5]
    write_snapshot(snapshots, 9)
    snapshots.open(9).verify()


def test_an_unfinished_snapshot_is_made_again(snapshots: Snapshots) -> None:
    write_shard(snapshots.directory(5), "ps-0", {"old": np.zeros(1000)})
    (snapshots.path(5) / "ps-1.safetensors.1-a.partial").write_bytes(b"half")
    write_snapshot(snapshots, 5)
    snapshots.open(5).verify()


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
    empty_manifest: "manifest.json is damaged: it is not JSON",
    flipped_manifest: "manifest.json is damaged: ",
    manifest_of_another: "manifest.json is damaged: it is that of step 100",
}


@pytest.mark.parametrize("damage", WORDS)
def test_a_damaged_snapshot_is_skipped_and_the_log_says_so(
    snapshots: Snapshots, caplog: pytest.LogCaptureFixture, damage: object
) -> None:
    assert callable(damage)
    for step in (100, 200, 300):
        directory = write_snapshot(snapshots, step)
    damage(directory)
    with caplog.at_level(logging.WARNING, "stratagem"):
        newest = snapshots.newest_readable()
    assert newest is not None and newest.step == 200
    assert same(newest.read("table"), table_of(200))
    assert [record.name for record in caplog.records] == ["stratagem"]
    said = caplog.text
    assert "the snapshot of step 300 is skipped" in said
    assert WORDS[damage] in said
    assert "the snapshot of step 200 is used instead" in said
    assert snapshots.steps() == [100, 200, 300]
    caplog.clear()
    assert [snapshot.step for snapshot in snapshots.readable()] == [200, 100]
    assert len(caplog.records) == 1


def test_all_damaged(snapshots: Snapshots, caplog: pytest.LogCaptureFixture) -> None:
    for step in (1, 2):
        missing(write_snapshot(snapshots, step))
    with pytest.raises(
        KeepError, match=r"none of the snapshots in .* can be read, of steps \[1, 2\]; the log says why"
    ):
        snapshots.newest_readable()
    assert caplog.text.count("and there is no older one that can be read") == 2


def test_a_check_of_ones_own(snapshots: Snapshots, caplog: pytest.LogCaptureFixture) -> None:
    for step in (1, 2, 3):
        missing(write_snapshot(snapshots, step))

    def check(snapshot: StoredSnapshot) -> None:
        snapshot.verify(["ps-0"])
        if snapshot.step == 3:
            raise KeepError("ps-1 on another host has lost it")

    newest = snapshots.newest_readable(check)
    assert newest is not None and newest.step == 2
    assert "ps-1 on another host has lost it (the snapshot of step 2 is used instead)" in caplog.text


def test_a_snapshot_that_is_removed_while_one_looks_is_no_damage(
    snapshots: Snapshots, caplog: pytest.LogCaptureFixture
) -> None:
    write_snapshot(snapshots, 1)

    def replaced_meanwhile(snapshot: StoredSnapshot) -> None:
        if snapshot.step == 1:
            write_snapshot(snapshots, 2)
            snapshots.prune(1)
        snapshot.verify()

    newest = snapshots.newest_readable(replaced_meanwhile)
    assert newest is not None and newest.step == 2
    assert not caplog.records


# ------------------------------------------------------------------ removing


def test_prune_keeps_the_newest_and_every_so_many(snapshots: Snapshots) -> None:
    for step in range(0, 100, 10):
        write_snapshot(snapshots, step)
    assert snapshots.prune(2, 40) == [10, 20, 30, 50, 60, 70]
    assert snapshots.steps() == [0, 40, 80, 90]
    assert sorted(path.name for path in snapshots.root.iterdir()) == [
        snapshots.path(step).name for step in (0, 40, 80, 90)
    ]
    assert snapshots.prune(1) == [0, 40, 80]
    assert snapshots.prune(1) == []
    snapshots.open(90).verify()


def test_prune_clears_what_was_left_unfinished_but_not_what_is_in_the_making(snapshots: Snapshots) -> None:
    write_shard(snapshots.directory(5), "ps-0", {"w": np.zeros(3)})
    newest = write_snapshot(snapshots, 10)
    (newest / "ps-0.safetensors.77-abcd.partial").write_bytes(b"half a shard")
    making = snapshots.directory(20)
    (making / "ps-0.safetensors.78-abcd.partial").write_bytes(b"half a shard")
    assert snapshots.prune(3) == [5]
    assert not snapshots.path(5).exists()
    assert sorted(path.name for path in newest.iterdir()) == [
        "manifest.json",
        "ps-0.safetensors",
        "ps-1.safetensors",
    ]
    assert [path.name for path in making.iterdir()] == ["ps-0.safetensors.78-abcd.partial"]


def test_without_a_finished_snapshot_nothing_is_pruned(snapshots: Snapshots) -> None:
    write_shard(snapshots.directory(5), "ps-0", {"w": np.zeros(3)})
    assert snapshots.prune(1) == []
    assert (snapshots.path(5) / "ps-0.safetensors").exists()


def test_files_of_others_stay(snapshots: Snapshots) -> None:
    notes = write_snapshot(snapshots, 1) / "notes.txt"
    notes.write_text("the best so far")
    write_snapshot(snapshots, 2)
    snapshots.prune(1)
    assert snapshots.steps() == [2]
    assert [path.name for path in snapshots.path(1).iterdir()] == ["notes.txt"]


def test_a_snapshot_half_removed_is_unfinished(
    snapshots: Snapshots, caplog: pytest.LogCaptureFixture
) -> None:
    write_snapshot(snapshots, 1)
    (write_snapshot(snapshots, 2) / "ps-0.safetensors").unlink()
    (snapshots.path(2) / "ps-0.safetensors").mkdir()  # so that removing stops at it
    with pytest.raises(KeepError, match="step-000000000002 cannot be cleared: Is a directory"):
        snapshots.remove(2)
    newest = snapshots.newest_readable()
    assert newest is not None and newest.step == 1
    assert not caplog.records


def test_what_stays() -> None:
    assert steps_to_keep([], 1) == set()
    assert steps_to_keep([3, 1, 2], 1) == {3}
    assert steps_to_keep([1, 2, 3], 5) == {1, 2, 3}
    assert steps_to_keep([0, 100, 150, 200, 250], 1, 100) == {0, 100, 200, 250}
    for keep in (0, -1, True, 1.5, None):
        with pytest.raises(KeepError, match="at least 1: the newest snapshot stays"):
            steps_to_keep([1], keep)  # type: ignore[arg-type]
    for every in (0, -5, "10"):
        with pytest.raises(KeepError, match="keep_every is"):
            steps_to_keep([1], 1, every)  # type: ignore[arg-type]
