"""The drills of `make drills` in a short form: a round or two of each, from a fixed seed.

Those of the launcher, the wire, parameter servers and checkpoints stand with the tests of these; so does a link that is
cut for long. A slow worker under each rule and a disk that gets full take longer and are left to `make drills`.
"""

import pytest

from drills import corrupt, multi_worker, termination
from drills.nursery import Nursery
from drills.table import Outcome


def problems(outcomes: list[Outcome]) -> list[str]:
    """What was not survived; if nothing, but not all could be done on this machine, the test is skipped."""
    assert outcomes
    found = [f"{outcome.drill}: {outcome.problem}" for outcome in outcomes if outcome.problem]
    missing = [outcome.not_run for outcome in outcomes if outcome.not_run is not None]
    if missing and not found:
        pytest.skip(missing[0])
    return found


def test_what_is_damaged_on_disk(nursery: Nursery) -> None:
    assert problems(corrupt.drills(rounds=1, seed=3, nursery=nursery)) == []


def test_a_worker_of_a_group_is_killed(nursery: Nursery) -> None:
    assert problems(multi_worker.drills(rounds=1, seed=5, nursery=nursery)) == []


def test_servers_are_asked_to_end_under_load() -> None:
    assert problems(termination.drills(rounds=1, seed=6)) == []
