"""Snapshots written by real processes: by several together, and by one that is killed at any moment."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from process.keep.writer import PARTS, ROWS
from stratagem.keep import Manifest, ShardRecord, Snapshots, StoredSnapshot, TensorEntry

WRITER = Path(__file__).with_name("writer.py")
ROUNDS = 20
MOST_CUTS = 4
LONGEST = 0.03
"""Seconds from a snapshot that was told of to the kill; making one takes less."""


def started(*arguments: object) -> "subprocess.Popen[str]":
    argv = [sys.executable, str(WRITER), *map(str, arguments)]
    return subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def check(snapshot: StoredSnapshot) -> None:
    """The snapshot, whose digests are right, is all of one step."""
    assert snapshot.manifest.meta == {"step": snapshot.step}
    assert snapshot.names == ["rows", *(f"n{part}" for part in range(PARTS))]
    for name in snapshot.names:
        assert np.all(snapshot.read(name) == snapshot.step)
    assert snapshot.read("rows").shape == (PARTS * ROWS, 4)


def check_file(path: Path) -> None:
    """What has the name of a shard is whole, be its snapshot finished or not."""
    step = int(path.parent.name.removeprefix("step-"))
    for array in load_file(path).values():
        assert np.all(array == step)


def killed_after(count: int, seconds: float, writers: "subprocess.Popen[str]") -> list[int]:
    """Let a new writer tell of so many snapshots and go on for so long, then kill it; the steps that it told of.

    The first of them is the one that it went on from.
    """
    assert writers.stdin is not None and writers.stdout is not None
    writers.stdin.write("\n")
    writers.stdin.flush()
    pid = int(writers.stdout.readline())
    told = [int(writers.stdout.readline()) for _ in range(1 + count)]
    time.sleep(seconds)  # waits for nothing: any moment will do
    os.kill(pid, signal.SIGKILL)
    while (line := writers.stdout.readline()) != "gone\n":
        told.append(int(line))
    return told


@pytest.fixture
def writers(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    with started(tmp_path) as process:
        yield process
        try:
            process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0


def test_a_writer_killed_at_any_moment(
    tmp_path: Path, writers: "subprocess.Popen[str]", caplog: pytest.LogCaptureFixture
) -> None:
    snapshots = Snapshots(tmp_path)
    seeded = random.Random(20)
    reached = -1
    for _ in range(ROUNDS):
        told = killed_after(seeded.randrange(MOST_CUTS), seeded.uniform(0, LONGEST), writers)
        assert told[0] == reached, "the writer went on from another snapshot than the newest that can be read"
        readable = list(snapshots.readable())
        found = max((snapshot.step for snapshot in readable), default=-1)
        # The last snapshot may be finished and not yet told of.
        assert found in (told[-1], told[-1] + 1)
        for snapshot in readable:
            check(snapshot)
        for file in tmp_path.glob("step-*/*.safetensors"):
            check_file(file)
        reached = found
    assert reached >= ROUNDS // 2, "snapshots were hardly made"
    assert not caplog.records, "a kill leaves snapshots unfinished, never damaged"
    snapshots.prune(1)
    assert snapshots.steps() == [reached]
    assert not list(snapshots.path(reached).glob("*.partial"))


def test_several_processes_write_one_snapshot(tmp_path: Path) -> None:
    writers = [started(tmp_path, 7, part) for part in range(PARTS)]
    told = [writer.communicate(timeout=60)[0] for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * PARTS
    snapshots = Snapshots(tmp_path)
    assert snapshots.steps() == []
    records = [ShardRecord.from_dict(json.loads(line)) for line in told]
    rows = TensorEntry.join([(record, f"rows/part_{part}") for part, record in enumerate(records)])
    entries = {f"n{part}": TensorEntry.join([(record, f"n{part}")]) for part, record in enumerate(records)}
    snapshots.commit(Manifest(7, records, {"rows": rows, **entries}, {"step": 7}))
    newest = snapshots.newest_readable()
    assert newest is not None and newest.step == 7
    check(newest)
