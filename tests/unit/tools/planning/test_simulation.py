"""The simulation against what can be worked out by hand."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratagem.errors import LaunchError
from stratagem.parameters.rules import Async, BoundedStaleness, Sync, UpdateRule
from stratagem.tools.planning.job_profile import JobProfile
from stratagem.tools.planning.server_simulation import ServerSimulation, simulate_servers
from stratagem.tools.planning.simulation import (
    SERVER_LINK,
    SERVER_UPDATE,
    WORKER_COMPUTE,
    Precision,
    simulate_all_reduce,
)
from stratagem.tools.planning.stragglers import Stragglers

FREE = JobProfile(
    step_time=0.01, model_bytes=0, latency=0, update_per_byte=0, average_per_byte=0, request_time=0
)
"""Nothing costs anything but computing."""
QUICK = Precision(relative=0.02, most=20_000)
RULES: list[UpdateRule] = [Async(), Async(overlap=True), Sync(), BoundedStaleness(0), BoundedStaleness(3)]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_one_worker_takes_the_time_of_a_step(rule: UpdateRule) -> None:
    found = simulate_servers(FREE, rule, 1, 1, QUICK)
    assert found.updates_per_second == pytest.approx(100)
    assert found.busiest == WORKER_COMPUTE
    assert found.waiting == pytest.approx(0)
    assert found.mean_staleness == (1 if rule == Async(overlap=True) else 0)


def test_one_worker_by_hand() -> None:
    figures = replace(
        FREE,
        model_bytes=1e6,
        bandwidth=1e8,
        latency=1e-3,
        update_per_byte=2e-9,
        request_time=3e-3,
        worker_overhead=5e-4,
    )
    # Compute, overhead, there, request, update, back.
    assert 1 / simulate_servers(figures, Async(), 1, 1, QUICK).updates_per_second == pytest.approx(
        0.01 + 0.0005 + (0.001 + 0.01) + 0.003 + 0.002 + (0.01 + 0.001)
    )
    # Four servers: a quarter of the update each; but server 0 is told by three others, there and back.
    assert 1 / simulate_servers(figures, Async(), 1, 4, QUICK).updates_per_second == pytest.approx(
        0.01 + 0.0005 + (0.001 + 0.01 + 0.001) + 4 * 0.003 + 0.0005 + (0.01 + 0.001 + 0.001)
    )


def test_two_in_step_by_hand() -> None:
    figures = replace(FREE, model_bytes=1e6, bandwidth=1e8, update_per_byte=2e-9, average_per_byte=1e-9)
    # Both send at once, through one link; two gradients are averaged; both are answered through one link.
    assert 1 / simulate_servers(figures, Sync(), 2, 1, QUICK).updates_per_second == pytest.approx(
        0.01 + 2 * 0.01 + 2 * 0.001 + 0.002 + 2 * 0.01
    )


@pytest.mark.parametrize("workers", [1, 2, 5, 20])
def test_in_step_with_exponential_steps_is_the_harmonic_number(workers: int) -> None:
    figures = replace(FREE, stragglers=Stragglers.parse("exponential"))
    expected = 1 / (0.01 * sum(1 / number for number in range(1, workers + 1)))
    precision = Precision(relative=0.01, most=60_000)
    assert simulate_servers(figures, Sync(), workers, 1, precision).updates_per_second == pytest.approx(
        expected, rel=0.03
    )
    assert simulate_all_reduce(figures, workers, precision).updates_per_second == pytest.approx(
        expected, rel=0.03
    )


def test_one_of_two_with_exponential_steps() -> None:
    """After an update one worker is fresh and the other stale, or both are fresh once the stale push was dropped.

    The first state ends in a drop at the rate of a step and the second in an update at twice that, so they last two
    thirds and one third of the time.
    """
    figures = replace(FREE, stragglers=Stragglers.parse("exponential"))
    found = simulate_servers(figures, Sync(1, 2), 2, 1, Precision(relative=0.01, most=60_000))
    assert found.updates_per_second == pytest.approx(100 * (2 / 3 + 2 / 3), rel=0.03)
    assert found.dropped == pytest.approx(1 / 3, rel=0.03)


@pytest.mark.parametrize("servers", [1, 2, 4])
def test_async_saturates_at_the_rate_of_the_servers(servers: int) -> None:
    figures = replace(FREE, model_bytes=1e6, bandwidth=1e12, update_per_byte=2e-9)
    found = simulate_servers(figures, Async(), 64, servers, QUICK)
    assert found.updates_per_second == pytest.approx(servers * 500, rel=0.01)
    assert found.busiest == SERVER_UPDATE
    assert found.busy[SERVER_UPDATE] == pytest.approx(1, rel=0.01)


def test_async_saturates_at_the_rate_of_the_link() -> None:
    figures = replace(
        FREE, step_time=0.1, model_bytes=1e6, bandwidth=1e9, stragglers=Stragglers.parse("exponential")
    )
    found = simulate_servers(figures, Async(), 400, 2, QUICK)
    assert found.updates_per_second == pytest.approx(2000, rel=0.1)
    assert found.busiest == SERVER_LINK


def test_workers_that_push_together_stay_together() -> None:
    """Equal shares of a link: two pushes that set out together take twice as long, and so do their answers."""
    figures = replace(FREE, model_bytes=1e6, bandwidth=1e8)
    assert 1 / simulate_servers(figures, Async(), 2, 1, QUICK).updates_per_second == pytest.approx(
        (0.01 + 2 * 0.02) / 2
    )
    apart = replace(figures, stragglers=Stragglers.parse("lognormal:0.3"))
    assert simulate_servers(apart, Async(), 2, 1, QUICK).updates_per_second > 1.1 * 2 / 0.05


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_a_server_asked_at_random_is_a_queue_of_one(load: float) -> None:
    """Very many workers that each ask rarely: arrivals at random, a constant service, so waits of ρ/(2(1 − ρ)) services."""
    workers, service = 400, 1e-3
    figures = replace(
        FREE,
        step_time=workers * service / load,
        request_time=service,
        stragglers=Stragglers.parse("exponential"),
    )
    found = simulate_servers(figures, Async(), workers, 1, Precision(rounds=20, most=80_000))
    assert found.round_trip == pytest.approx(service * (1 + load / (2 * (1 - load))), rel=0.08)
    assert found.busy[SERVER_UPDATE] == pytest.approx(load, rel=0.03)


@pytest.mark.parametrize("workers", [2, 5, 30])
def test_every_other_worker_pushes_once_between_two_of_mine(workers: int) -> None:
    found = simulate_servers(
        replace(FREE, stragglers=Stragglers.parse("lognormal:0.3")), Async(), workers, 1, QUICK
    )
    assert found.mean_staleness == pytest.approx(workers - 1, rel=0.02)
    assert found.p99_staleness > workers - 1


def test_in_step_nothing_is_stale_or_dropped() -> None:
    found = simulate_servers(
        replace(FREE, stragglers=Stragglers.parse("lognormal:0.3")), Sync(), 10, 1, QUICK
    )
    assert (found.mean_staleness, found.p99_staleness, found.dropped) == (0, 0, 0)
    assert found.waiting > 0.1


def test_slow_workers_cost_in_step_and_are_dropped_as_backups() -> None:
    figures = replace(FREE, stragglers=Stragglers.parse("slow:0.1x3"))
    assert simulate_servers(figures, Sync(), 10, 1, QUICK).updates_per_second == pytest.approx(100 / 3)
    backed = simulate_servers(figures, Sync(9, 10), 10, 1, QUICK)
    assert backed.updates_per_second == pytest.approx(100)
    assert backed.dropped == pytest.approx(1 / 28, rel=0.05)  # one for every three steps of nine
    assert simulate_servers(figures, Async(), 10, 1, QUICK).updates_per_second == pytest.approx(
        900 + 100 / 3, rel=0.01
    )


def test_backup_workers_beat_waiting_for_all() -> None:
    figures = replace(FREE, stragglers=Stragglers.parse("pareto:2.5"))
    all_of_them = simulate_servers(figures, Sync(), 50, 1, QUICK)
    most = simulate_servers(figures, Sync(45, 50), 50, 1, QUICK)
    assert most.gradients_per_second > 1.5 * all_of_them.gradients_per_second
    assert most.waiting < all_of_them.waiting


def test_bounded_staleness_is_between_in_step_and_async() -> None:
    figures = replace(FREE, stragglers=Stragglers.parse("lognormal:0.5"))
    paces = [
        simulate_servers(figures, rule, 16, 1, QUICK).gradients_per_second
        for rule in (Sync(), BoundedStaleness(0), BoundedStaleness(2), BoundedStaleness(8), Async())
    ]
    assert paces[0] == pytest.approx(paces[1], rel=0.05)  # a bound of 0 is to go in step
    assert sorted(paces[1:]) == paces[1:]
    assert paces[-1] > 1.5 * paces[0]


def test_overlap_hides_the_way_there_and_back() -> None:
    figures = replace(FREE, latency=0.004)
    assert simulate_servers(figures, Async(), 2, 1, QUICK).updates_per_second == pytest.approx(2 / 0.018)
    assert simulate_servers(figures, Async(overlap=True), 2, 1, QUICK).updates_per_second == pytest.approx(
        2 / 0.01
    )
    slow = replace(figures, latency=0.02)  # longer than a step: one push is under way at a time
    assert simulate_servers(slow, Async(overlap=True), 2, 1, QUICK).updates_per_second == pytest.approx(
        2 / 0.04
    )


def test_the_same_seed_gives_the_same_plan() -> None:
    figures = replace(FREE, stragglers=Stragglers.parse("lognormal:0.3"))
    assert simulate_servers(figures, Async(), 4, 1, QUICK, seed=3) == simulate_servers(
        figures, Async(), 4, 1, QUICK, seed=3
    )
    assert simulate_servers(figures, Async(), 4, 1, QUICK, seed=3) != simulate_servers(
        figures, Async(), 4, 1, QUICK, seed=4
    )


def test_it_is_simulated_for_longer_where_chance_is_larger() -> None:
    certain = simulate_servers(FREE, Sync(), 4, 1, Precision())
    chance = simulate_servers(
        replace(FREE, stragglers=Stragglers.parse("exponential")), Sync(), 4, 1, Precision()
    )
    assert certain.half_width == pytest.approx(0, abs=1e-9)
    assert certain.pushes < chance.pushes
    assert chance.half_width <= Precision().relative
    hopeless = replace(FREE, stragglers=Stragglers.parse("pareto:1.1"))
    assert simulate_servers(hopeless, Sync(), 4, 1, Precision(most=5000)).pushes <= 6000


class TestRing:
    def test_one_worker_takes_the_time_of_a_step(self) -> None:
        assert simulate_all_reduce(FREE, 1, QUICK).updates_per_second == pytest.approx(100)

    def test_four_by_hand(self) -> None:
        figures = replace(
            FREE, model_bytes=4e6, bandwidth=1e9, latency=1e-4, update_per_byte=1e-9, average_per_byte=0.5e-9
        )
        # Six messages of a quarter of the model, three quarters of it added up, and everybody's own update.
        expected = 0.01 + 6 * (1e-4 + 1e-3) + 0.75 * 0.002 + 0.004
        assert 1 / simulate_all_reduce(figures, 4, QUICK).updates_per_second == pytest.approx(expected)
        tree = replace(figures, collective="tree")
        assert 1 / simulate_all_reduce(tree, 4, QUICK).updates_per_second == pytest.approx(
            expected - 2 * 1e-4
        )


WAYS = st.sampled_from([Async(), Sync(), BoundedStaleness(2)])
LOADS = st.builds(
    JobProfile,
    step_time=st.floats(1e-3, 0.1),
    model_bytes=st.floats(1e3, 1e8),
    bandwidth=st.floats(1e8, 1e10),
    latency=st.floats(0, 1e-3),
    update_per_byte=st.floats(0, 1e-9),
    average_per_byte=st.floats(0, 1e-9),
    request_time=st.floats(0, 1e-3),
)
SHORT = Precision(least=3, most=2000)


@settings(max_examples=40)
@given(LOADS, WAYS, st.integers(1, 24), st.integers(1, 4))
def test_nothing_goes_faster_than_it_can(
    figures: JobProfile, rule: UpdateRule, workers: int, servers: int
) -> None:
    found = simulate_servers(figures, rule, workers, servers, SHORT)
    most = min(
        workers / (figures.step_time + 2 * (figures.transfer_time + figures.latency)),
        servers / figures.transfer_time,
    )
    assert found.gradients_per_second <= most * 1.02
    assert all(0 <= share <= 1.000001 for share in found.busy.values())
    assert 0 <= found.waiting <= 1


@settings(max_examples=40)
@given(
    LOADS,
    WAYS,
    st.integers(1, 24),
    st.integers(1, 4),
    st.sampled_from(["bandwidth", "step_time", "latency", "request_time", "update_per_byte"]),
)
def test_better_machines_are_never_slower(
    figures: JobProfile, rule: UpdateRule, workers: int, servers: int, name: str
) -> None:
    if rule != Sync():  # without a link on which they may, or may not, push together
        figures = replace(figures, bandwidth=1e15)
    factor = 2 if name == "bandwidth" else 0.5
    better = replace(figures, **{name: getattr(figures, name) * factor})
    before = simulate_servers(figures, rule, workers, servers, SHORT).gradients_per_second
    after = simulate_servers(better, rule, workers, servers, SHORT).gradients_per_second
    assert after >= before * 0.98


@settings(max_examples=40)
@given(LOADS, WAYS, st.integers(1, 16))
def test_more_workers_never_bring_less(figures: JobProfile, rule: UpdateRule, workers: int) -> None:
    figures = replace(
        figures, average_per_byte=0.0
    )  # one worker alone has nothing to average, and is spared that
    if rule != Sync():
        figures = replace(figures, bandwidth=1e15)
    fewer = simulate_servers(figures, rule, workers, 1, SHORT).gradients_per_second
    assert simulate_servers(figures, rule, workers * 2, 1, SHORT).gradients_per_second >= fewer * 0.98


@pytest.mark.parametrize(("workers", "servers"), [(0, 1), (1, 0), (-1, 1)])
def test_jobs_of_nobody_are_refused(workers: int, servers: int) -> None:
    with pytest.raises(LaunchError, match="at least 1 of each"):
        ServerSimulation(FREE, Async(), workers, servers)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step_time", 0),
        ("step_time", math.nan),
        ("bandwidth", -1),
        ("model_bytes", -1),
        ("latency", math.inf),
        ("batch", 0),
        ("collective", "star"),
    ],
)
def test_figures_that_cannot_be_are_refused(name: str, value: object) -> None:
    with pytest.raises(LaunchError, match=f"{name}=.* cannot be planned with: give"):
        replace(FREE, **{name: value})  # type: ignore[arg-type]
