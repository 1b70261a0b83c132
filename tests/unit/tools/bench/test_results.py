"""What workers' reports come to, and medians over rounds."""

from pathlib import Path

import pytest

from stratagem.tools.bench.contenders import Contender
from stratagem.tools.bench.results import Measurement, WorkerReport
from unit.tools.bench.measured import result

CHIEF = WorkerReport(100, 2.0, 10_000, {0: 60, 1: 40}, ((0.5, 2.0), (1.5, 1.0)), 0.9)
SLOW = WorkerReport(20, 2.0, 2_000, {1: 10, 4: 10})


def test_a_report_survives_its_file(tmp_path: Path) -> None:
    CHIEF.write(tmp_path / "report-0")
    assert WorkerReport.read(tmp_path / "report-0") == CHIEF
    assert [path.name for path in tmp_path.iterdir()] == ["report-0"]


def test_workers_at_their_own_pace_add_up() -> None:
    found = Measurement.of(Contender("async", 2), [CHIEF, SLOW])
    assert (found.steps_per_second, found.examples_per_second) == (60, 6_000)
    assert found.staleness == pytest.approx((40 + 10 + 40) / 120)
    assert (found.most_staleness, found.loss, found.curve) == (4, 0.9, CHIEF.curve)


def test_workers_in_step_make_each_update_together() -> None:
    reports = [WorkerReport(100, 2.0, 10_000, loss=0.9), WorkerReport(100, 2.0, 10_000)]
    found = Measurement.of(Contender("multi-worker", 2), reports)
    assert (found.steps_per_second, found.examples_per_second) == (50, 10_000)
    assert (found.staleness, found.most_staleness) == (None, None)


def test_medians_of_rounds_and_efficiency() -> None:
    one = result("one-device", 1, [1000, 5000, 2000])
    two = result("async", 2, [3000, 9000, 3000], staleness=0.5, paces=(10.0, 4.0))
    assert (one.examples_per_second, two.examples_per_second) == (2000, 3000)
    assert two.efficiency(one) == 0.75
    assert two.evenness == 0.4
    assert one.median_round.examples_per_second == 2000
