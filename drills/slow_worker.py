"""Make one worker ten times slower than the others, or halt it: check whom it holds back, and who is told."""

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from drills.nursery import Job, Nursery, use_nursery
from drills.rounds import attempt
from drills.table import Outcome

PACING, HALTING = (Path(__file__).with_name(f"{name}_task.py") for name in ("pacing", "halting"))
WORKERS = 3
AHEAD = 4
"""Steps that bounded staleness lets a worker be ahead."""
PUSHES = 20


def paced(nursery: Nursery, place: Path, rule: str, last: int, slow: int) -> tuple[list[int], dict[str, Any]]:
    """Train with one slow worker. Return the pushes of each worker, and server 0's status of the model."""
    with nursery.job(place, 2, WORKERS) as job:
        servers = [job.serve(index) for index in range(2)]
        workers = [job.start("worker", index, PACING, rule, place, last, slow) for index in range(WORKERS)]
        for worker in workers:
            worker.says('"first"')
        (place / "all").touch()
        for worker in workers:
            worker.says('"pushes"')
        status = job.status()["/job:ps/task:0"]["parameters"]["model-0"]
        (place / "seen").touch()
        for task in (*workers, *servers):
            task.ends_well()
    return [worker.results()[-1]["pushes"] for worker in workers], status


def asynchronous(nursery: Nursery, place: Path, random: Random) -> None:
    """Check that the others are not held back: they make most of the pushes."""
    slow = random.randrange(WORKERS)
    pushes, status = paced(nursery, place, "sg.Async()", random.randint(30, 60), slow)
    others = [count for index, count in enumerate(pushes) if index != slow]
    assert pushes[slow] < min(others) / 2, f"worker {slow} made {pushes[slow]} pushes, the others {others}"
    assert sum(pushes) == status["global_step"], f"{pushes} pushes made step {status['global_step']}"
    assert status["dropped"] == {}, f"dropped: {status['dropped']}"
    assert sum(status["staleness"].values()) == sum(pushes), status["staleness"]
    assert set(status["staleness"]) - {"0"}, "three at once, and no gradient was of an older step"


def backup(nursery: Nursery, place: Path, random: Random) -> None:
    """Check that the others make all updates; pushes of the slow worker that come too late are dropped and counted."""
    slow, last = random.randrange(WORKERS), random.randint(30, 60)
    rule = f"sg.Sync(replicas_to_aggregate={WORKERS - 1}, total_num_replicas={WORKERS})"
    pushes, status = paced(nursery, place, rule, last, slow)
    others = [count for index, count in enumerate(pushes) if index != slow]
    taken, dropped = (WORKERS - 1) * last, status["dropped"]
    assert status["global_step"] == last, f"step {status['global_step']}, and the last one is {last}"
    assert pushes[slow] < min(others), f"worker {slow} made {pushes[slow]} pushes, the others {others}"
    assert dropped[f"/job:worker/task:{slow}"] > 0, f"dropped: {dropped}"
    assert sum(pushes) == taken + sum(dropped.values()), f"{pushes} pushes, {taken} taken, dropped: {dropped}"
    assert status["staleness"] == {"0": taken}, status["staleness"]


class _Halted:
    """Two workers, of which one halts for a while."""

    def __init__(self, job: Job, place: Path, rule: str, halts: int, done: int) -> None:
        self._job, self._place, self._rule, self._done = job, place, rule, done
        self._server = job.serve(0)
        self._workers = [
            job.start("worker", index, HALTING, rule, place, PUSHES, halts, done) for index in range(2)
        ]
        self._slow, self._waiting = self._workers[halts], self._workers[1 - halts]

    def see_who_is_named(self, answered: int, updates: int) -> None:
        """Wait until the other worker says for whom it waits.

        Args:
            answered: Pushes that it gets an answer to before.
            updates: Updates that are made by then.
        """
        held, awaited = (f"/job:worker/task:{task.name.index}" for task in (self._waiting, self._slow))
        self._waiting.says(f"{held} waits for {awaited} (")
        text = self._waiting.text
        assert f"pushed {answered}\n" in text, f"it was held back before push {answered}"
        assert f"pushed {answered + 1}\n" not in text, f"it was not held back after push {answered}"
        assert f"pushed {self._done}\n" in self._slow.text
        status = self._job.status()["/job:ps/task:0"]["parameters"]["model-0"]
        assert status["global_step"] == updates, f"step {status['global_step']}, expected {updates}"
        assert status["rule"].startswith(self._rule.removeprefix("sg.").partition("(")[0]), status["rule"]
        if self._rule == "sg.Sync()":
            assert status["waits_for"] == [awaited], f"waits for {status['waits_for']}"

    def let_go(self) -> None:
        """Release the halted worker."""
        (self._place / "seen").touch()

    def ends_at(self, last: int) -> None:
        """Wait until all have ended well, at this step."""
        for task in (*self._workers, self._server):
            task.ends_well()
        steps = [worker.results()[0]["fetched"]["step"] for worker in self._workers]
        assert max(steps) == last, f"steps {steps}, and the last one is {last}"


def halting(nursery: Nursery, place: Path, random: Random) -> None:
    """Check that the others wait for the halted worker, at once or as far ahead as they may be, and say so.

    Both rules run at the same time, in two independent jobs on one machine.
    """
    done = random.randint(1, 6)
    expected = {
        "sg.Sync()": (done, done, PUSHES),
        f"sg.BoundedStaleness({AHEAD})": (done + AHEAD, 2 * done + AHEAD + 1, 2 * PUSHES),
    }
    with ExitStack() as stack:
        started = []
        for number, rule in enumerate(expected):
            own = place / str(number)
            own.mkdir()
            job = stack.enter_context(nursery.job(own, 1, 2))
            started.append(_Halted(job, own, rule, random.randrange(2), done))
        for halted, (answered, updates, _) in zip(started, expected.values(), strict=True):
            halted.see_who_is_named(answered, updates)
            halted.let_go()
        for halted, (_, _, last) in zip(started, expected.values(), strict=True):
            halted.ends_at(last)


Round = Callable[[Nursery, Path, Random], None]
KINDS: dict[str, tuple[str, Round]] = {
    "slow: a worker, async": ("the others are not held back; every push counts once", asynchronous),
    "slow: a worker, sync with a backup": ("not held back; what came late is dropped and counted", backup),
    "slow: a worker halts, sync and bounded staleness": (
        "held back at once, or when ahead by the bound; who is awaited is named",
        halting,
    ),
}


def drills(rounds: int, seed: int, nursery: Nursery | None = None) -> list[Outcome]:
    """Return the outcomes of this number of rounds, over all rules in turn."""
    random = Random(seed)
    outcomes = []
    with use_nursery(nursery) as forks:
        for number in range(rounds):
            name, (checked, run) = list(KINDS.items())[number % len(KINDS)]
            with tempfile.TemporaryDirectory() as place:
                outcomes.append(attempt(name, checked, partial(run, forks, Path(place), random)))
    return outcomes
