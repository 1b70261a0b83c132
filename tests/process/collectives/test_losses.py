"""Workers that die, freeze, leave or do something else: all others say so, in time, and name the culprit."""

import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from process.collectives.nursery import Crew, Nursery

KILLS = 10
AT_ONCE = 2.0


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


def survivors_name(crew: Crew, lost: int, workers: int, since: float) -> float:
    """All others raise WorkerLost, naming the lost one, and go on saying so; the longest that one took."""
    took: list[float] = []
    for worker in range(workers):
        if worker == lost:
            continue
        while "again" not in (again := crew.line(worker)):
            assert "ended" not in again, again
        assert again["again"] == "WorkerLost"
        assert "this group of workers has come to an end" in again["words"]
        end = crew.end(worker)
        assert (end["ended"], end["task"]) == ("WorkerLost", f"/job:worker/task:{lost}"), end
        assert "start all workers again" in end["words"]
        took.append(again["at"] - since)
    return max(took)


def test_a_worker_killed_at_any_moment_is_named_at_once(nursery: Nursery) -> None:
    chance = random.Random(0)
    for number in range(KILLS):
        workers = 2 + number % 3
        lost = number % workers
        with nursery.crew(workers, "endless") as crew:
            for worker in range(workers):
                assert crew.line(worker)["going"]
            time.sleep(chance.uniform(0, 0.05))  # a moment like any other
            killed = crew.signal(lost, signal.SIGKILL)
            assert survivors_name(crew, lost, workers, killed) < AT_ONCE


@pytest.mark.parametrize("lost", [0, 2])
def test_a_worker_that_freezes_is_named_by_the_timeout(nursery: Nursery, lost: int) -> None:
    with nursery.crew(3, "endless", timeout=1.0) as crew:
        for worker in range(3):
            assert crew.line(worker)["going"]
        frozen = crew.signal(lost, signal.SIGSTOP)
        assert survivors_name(crew, lost, 3, frozen) < 1.0 + AT_ONCE


def mixed(nursery: Nursery, fault: str, workers: int = 3, **options: Any) -> list[dict[str, str]]:
    with nursery.crew(workers, "mixed", fault=fault, **options) as crew:
        return [crew.end(worker) for worker in range(workers) if worker != 1 or fault != "sleeps"]


def test_another_operation_is_out_of_step(nursery: Nursery) -> None:
    for end in mixed(nursery, "barrier"):
        assert end["ended"] == "RemoteError", end
        assert "out of step" in end["words"]
        assert "operation 4 (barrier)" in end["words"]
        assert "operation 4 (all_reduce)" in end["words"]
        assert "/job:worker/task:1" in end["words"]


@pytest.mark.parametrize("workers", [2, 3])
def test_a_worker_that_leaves_early_is_named_with_its_step(nursery: Nursery, workers: int) -> None:
    ends = mixed(nursery, "leaves", workers)
    assert ends[1]["ended"] == "well"
    for end in ends[:1] + ends[2:]:
        assert (end["ended"], end["task"]) == ("WorkerLost", "/job:worker/task:1"), end
        assert "/job:worker/task:1 has left the group after operation 3" in end["words"]
        assert "same number of" in end["words"]


@pytest.mark.parametrize("fault", ["fails", "interrupted"])
def test_a_worker_that_fails_is_lost(nursery: Nursery, fault: str) -> None:
    for end in mixed(nursery, fault)[::2]:
        assert (end["ended"], end["task"]) == ("WorkerLost", "/job:worker/task:1"), end


def test_a_worker_that_is_alive_may_take_its_time_but_not_for_ever(nursery: Nursery) -> None:
    started = time.monotonic()
    for end in mixed(nursery, "sleeps", timeout=0.5, patience=2.0):
        assert (end["ended"], end["task"]) == ("WorkerLost", "/job:worker/task:1"), end
        assert "it answers, but" in end["words"]
    assert time.monotonic() - started > 2.0


@pytest.mark.parametrize(
    ("fault", "words"),
    [("shapes", "float32[500, 10]"), ("shapes", "float32[500, 11]"), ("fewer", "float32[10]")],
)
def test_other_arrays_are_named_on_both_sides(nursery: Nursery, fault: str, words: str) -> None:
    for end in mixed(nursery, fault):
        assert end["ended"] == "VariableMismatch", end
        assert words in end["words"]
        assert "/job:worker/task:1" in end["words"]


def test_an_older_generation_is_not_let_in(nursery: Nursery) -> None:
    with nursery.crew(2, "late", start=False) as crew:
        crew.start(0, generation=1)
        crew.start(1, generation=0)
        end = crew.end(1)
        assert end["ended"] == "RemoteError", end
        assert "generation 1" in end["words"]


def test_a_worker_that_never_joins_is_named(nursery: Nursery) -> None:
    with nursery.crew(2, "late", start=False, forming=1.0) as crew:
        crew.start(0)
        crew.start(1, program="alone")
        end = crew.end(0)
        assert (end["ended"], end["task"]) == ("TaskUnreachable", "/job:worker/task:1"), end


def test_a_worker_that_dies_while_others_still_form_is_named(nursery: Nursery) -> None:
    with nursery.crew(3, "late", start=False, forming=2.0) as crew:
        crew.start(0, 1)
        assert crew.line(0)["listens"]
        assert crew.line(1)["listens"]
        crew.signal(1, signal.SIGKILL)
        crew.start(2)
        for worker in (0, 2):
            assert crew.end(worker)["task"] == "/job:worker/task:1"
