"""A process that is killed while it saves, at any moment: the last checkpoint that it had finished is restored."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from process.checkpoints.saver import state_of
from stratagem import Checkpointer

SAVER = Path(__file__).with_name("saver.py")
ROOT = SAVER.parents[3]
ROUNDS = 50
LONGEST = 0.02
"""Seconds from a checkpoint that was told of to the kill; making one takes less."""


def test_a_saver_killed_at_any_moment(tmp_path: Path) -> None:
    seeded = random.Random(50)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SAVER.parents[2]), str(ROOT)])}
    reached = unfinished = 0
    with subprocess.Popen(
        [sys.executable, str(SAVER), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environ,
    ) as saver:
        assert saver.stdin is not None and saver.stdout is not None
        for _ in range(ROUNDS):
            saver.stdin.write("\n")
            saver.stdin.flush()
            pid = int(saver.stdout.readline())
            told = [int(saver.stdout.readline()) for _ in range(1 + seeded.randrange(3))]
            time.sleep(seeded.uniform(0, LONGEST))  # waits for nothing: any moment will do
            os.kill(pid, signal.SIGKILL)
            while not (line := saver.stdout.readline()).startswith("gone"):
                told.append(int(line))
            assert line == f"gone {-signal.SIGKILL}\n"
            # What it went on from was the newest, or that which was finished and not told of.
            assert told[0] in (reached, reached + 1)
            reached = told[-1]
            directories = {path.name for path in tmp_path.iterdir()}
            unfinished += len(directories) > len(Checkpointer(tmp_path).steps())
        saver.stdin.close()
        assert saver.wait(60) == 0
    assert unfinished > ROUNDS // 10, "hardly one was killed while it saved"
    checkpoints = Checkpointer(tmp_path)
    restored = checkpoints.restore(like=state_of(0))
    assert restored is not None
    assert int(restored.step) == checkpoints.data == checkpoints.latest() in (reached, reached + 1)
