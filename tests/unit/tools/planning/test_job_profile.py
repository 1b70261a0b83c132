"""What failures cost: against games of chance that are played out, and between rules."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.errors import LaunchError
from stratagem.parameters.rules import Async, BoundedStaleness, Sync
from stratagem.tools.planning.job_profile import FailureModel
from stratagem.tools.planning.rule_models import AllReduce

DAILY = FailureModel(mtbf=86_400.0, restart_time=60.0, snapshot_interval=600.0)


def test_without_failures_nothing_is_lost() -> None:
    for way in (AllReduce(), Async(), Sync(), BoundedStaleness(3)):
        assert FailureModel().useful_share(way, 1000, 10, 0.1) == 1


@pytest.mark.parametrize("workers", [10, 300])
def test_going_back_to_snapshots_played_out(workers: int) -> None:
    random = np.random.default_rng(0)
    clock = kept = 0.0
    while kept < 4000 * DAILY.snapshot_interval:
        until_failure = random.exponential(DAILY.mtbf / workers)
        kept += until_failure // DAILY.snapshot_interval * DAILY.snapshot_interval
        clock += until_failure + DAILY.restart_time
    assert DAILY.useful_share(AllReduce(), workers, 0, 0.1) == pytest.approx(kept / clock, rel=0.02)


def test_a_lost_worker_is_waited_for_in_step() -> None:
    """Each is up for mtbf / (mtbf + restart) of the time, and all have to be."""
    up = 86_400 / 86_460
    servers = DAILY.useful_share(Async(), 1, 4, 0.1) / up
    assert DAILY.useful_share(Sync(), 50, 4, 0.1) == pytest.approx(servers * up**50)
    assert DAILY.useful_share(Sync(49, 50), 50, 4, 0.1) == pytest.approx(
        servers * (up**50 + 50 * up**49 * (1 - up))
    )


def test_the_less_a_rule_waits_the_less_it_loses() -> None:
    ways = (AllReduce(), Sync(), BoundedStaleness(4), BoundedStaleness(100_000))
    useful = [DAILY.useful_share(way, 500, 4, 0.1) for way in (*ways, Async())]
    assert sorted(useful) == useful
    assert useful[-1] == pytest.approx(useful[-2])
    assert useful[0] < 0.2


def test_more_servers_fail_more_often() -> None:
    assert DAILY.useful_share(Async(), 50, 64, 0.1) < DAILY.useful_share(Async(), 50, 1, 0.1)


def test_so_many_failures_that_nothing_is_ever_kept() -> None:
    assert FailureModel(mtbf=1.0).useful_share(AllReduce(), 1000, 0, 0.1) == 0


@given(st.floats(1, 1e9), st.floats(0, 1e4), st.floats(1, 1e4), st.integers(1, 5000), st.integers(1, 64))
def test_it_is_always_a_share(
    mtbf: float, restart: float, interval: float, workers: int, servers: int
) -> None:
    failures = FailureModel(mtbf, restart, interval)
    for way in (AllReduce(), Async(), Sync(), Sync(max(1, workers - 3), workers), BoundedStaleness(2)):
        assert 0 <= failures.useful_share(way, workers, servers, 0.01) <= 1


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"mtbf": 0}, "mean time between failures"),
        ({"mtbf": math.nan}, "mean time between failures"),
        ({"restart_time": -1}, "restart time"),
        ({"snapshot_interval": 0}, "snapshot interval"),
    ],
)
def test_what_cannot_be_is_refused(values: dict[str, float], named: str) -> None:
    with pytest.raises(LaunchError, match=f"{named} of .*: give"):
        FailureModel(**values)
