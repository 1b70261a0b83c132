"""Kill a process that saves, at any moment: the last checkpoint that it finished is restored."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from drills.checkpoint_saver import state_of
from drills.rounds import attempt
from drills.table import Outcome
from stratagem import Checkpointer

SAVER = Path(__file__).with_name("checkpoint_saver.py")
LONGEST = 0.02
"""Seconds from a checkpoint that was told of to the kill; making one takes less."""
DURING, BETWEEN = "checkpoints: kill -9 during a save", "checkpoints: kill -9 between saves"
CHECKED = "the last finished one restores, all of one step; the next process goes on from it"


@dataclass
class _Savers:
    """The process that forks savers, and the last checkpoint that they reported."""

    process: "subprocess.Popen[str]"
    directory: Path
    reached: int = 0

    def killed(self, random: Random) -> None:
        """Run one saver until it is killed at a random moment, and check what it left."""
        ask, answers = self.process.stdin, self.process.stdout
        assert ask is not None and answers is not None
        ask.write("\n")
        ask.flush()
        pid = int(answers.readline())
        told = [int(answers.readline()) for _ in range(1 + random.randrange(3))]
        time.sleep(random.uniform(0, LONGEST))  # the moment is what is random here, not something to wait for
        os.kill(pid, signal.SIGKILL)
        while not (line := answers.readline()).startswith("gone"):
            told.append(int(line))
        assert line == f"gone {-signal.SIGKILL}\n", f"it ended by itself: {line}"
        # What it went on from was the newest, or that which was finished and not told of.
        assert told[0] in (self.reached, self.reached + 1), f"after {self.reached} it went on from {told[0]}"
        self.reached = told[-1]
        if self.reached:
            checkpoints = Checkpointer(self.directory)
            restored = checkpoints.restore(like=state_of(0))
            found = None if restored is None else int(restored.step)
            assert found == checkpoints.data == checkpoints.latest(), f"{found} is not {checkpoints.latest()}"
            assert found in (self.reached, self.reached + 1), f"{found} was restored after {self.reached}"

    def left_one_unfinished(self) -> bool:
        """Return whether an unfinished checkpoint is left."""
        names = {path.name for path in self.directory.iterdir()}
        return len(names) > len(Checkpointer(self.directory).steps())


@contextmanager
def _savers(directory: Path) -> Iterator[_Savers]:
    environ = {**os.environ, "PYTHONPATH": str(SAVER.parents[1])}
    argv = [sys.executable, str(SAVER), str(directory)]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
    ) as process:
        yield _Savers(process, directory)


def drills(rounds: int, seed: int) -> list[Outcome]:
    """Return the outcomes of savers that run one after the other in one directory."""
    random = Random(seed)
    outcomes = []
    with tempfile.TemporaryDirectory() as place, _savers(Path(place)) as savers:
        for _ in range(rounds):
            outcome = attempt(DURING, CHECKED, lambda: savers.killed(random))
            outcomes.append(outcome if savers.left_one_unfinished() else replace(outcome, drill=BETWEEN))
    return outcomes
