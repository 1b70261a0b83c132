"""What is advised, by what was measured."""

from stratagem.tools.bench.results import advise
from unit.tools.bench.measured import failed, result

ONE = result("one-device", 1, [1000])
UNEVEN = (10.0, 3.0)


def test_balanced_and_small_goes_in_step() -> None:
    [said] = advise(
        [ONE, result("multi-worker", 2, [1900]), result("async", 2, [1950], staleness=0.9)], cores=4
    )
    assert said.startswith(
        "Use sg.MultiWorkerMirroredStrategy() (multi-worker mirrored, 2 workers): 1.9 times one device's speed"
    )
    assert "balanced" in said


def test_uneven_workers_do_not_wait_for_each_other() -> None:
    together = result("sync", 2, [900], loss=0.8, paces=(3.0, 3.0))
    apart = result("async", 2, [1500], loss=0.6, staleness=1.2, paces=UNEVEN)
    [said] = advise([ONE, together, apart], cores=4)
    assert said.startswith("Use sg.ParameterServerStrategy(update=sg.Async())")
    assert "uneven (the slowest takes 30% of the fastest's steps)" in said
    assert "1.2 steps stale" in said
    assert "lower, too (0.600 against 0.800)" in said


def test_large_models_do_not_wait_either() -> None:
    [said] = advise(
        [ONE, result("multi-worker", 2, [1200]), result("async", 2, [1800], loss=0.7, staleness=1.0)], cores=4
    )
    assert said.startswith("Use sg.ParameterServerStrategy(update=sg.Async())")
    assert "communication takes long compared with computing" in said
    assert "higher (0.700 against 0.500): try a smaller learning rate" in said


def test_a_bound_that_costs_nothing_is_kept() -> None:
    results = [
        ONE,
        result("sync", 2, [900]),
        result("async", 2, [1500], paces=UNEVEN),
        result("bounded", 2, [1450], paces=UNEVEN),
    ]
    assert "sg.BoundedStaleness(4)" in advise(results, cores=4)[0]
    results[-1] = result("bounded", 2, [950], paces=UNEVEN)
    assert "sg.Async()" in advise(results, cores=4)[0]


def test_nothing_gained_is_said() -> None:
    first, second = advise([ONE, result("mirrored", 2, [800]), result("multi-worker", 2, [1050])], cores=2)
    assert first.startswith("Use sg.OneDeviceStrategy(): several processes or devices gain nothing here")
    assert "already computes on all 2 cores" in first
    assert second == (
        "Among several processes, multi-worker mirrored, 2 workers does best (sg.MultiWorkerMirroredStrategy())."
    )


def test_devices_of_one_process_may_gain_where_uneven_processes_do_not() -> None:
    results = [
        ONE,
        result("mirrored", 2, [1800]),
        result("sync", 2, [500]),
        result("async", 2, [900], paces=UNEVEN),
    ]
    first, second = advise(results, cores=4)
    assert first.startswith("Use sg.MirroredStrategy() (mirrored, 2 devices): 1.8 times")
    assert "Several processes gain nothing" in first
    assert "servers, async, 2 workers does best" in second


def test_only_what_was_measured_is_compared() -> None:
    [said] = advise([ONE, result("async", 2, [1800])], cores=4)
    assert "not compared with a strategy that keeps workers in step" in said
    [said] = advise([ONE, result("multi-worker", 2, [1800]), failed("async", 2)], cores=4)
    assert "not compared with a strategy that lets workers go at their own pace" in said


def test_nothing_to_compare_is_said() -> None:
    assert advise([ONE, result("async", 1, [900])], cores=4)[0].startswith("No advice: nothing with several")
    assert advise([failed("one-device", 1), result("async", 2, [900])], cores=4)[0].startswith(
        "No advice: one device"
    )
