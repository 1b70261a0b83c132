"""What workers leave for each other: metrics, and how their data begin."""

import pytest

from stratagem.errors import StrategyError
from stratagem.parameters.authority import Decision
from stratagem.parameters.model_core import ModelCore
from stratagem.parameters.protocol import StoreConfig
from stratagem.parameters.pushes import Metrics
from stratagem.parameters.rules import APPLIED, Push, Sync

WORKERS = ("/job:worker/task:0", "/job:worker/task:1")
CONFIG = StoreConfig(
    name="model", server=0, servers=("/job:ps/task:0",), workers=WORKERS, participants=(0,), leaves=(), slots=(), commons=(),
    rule=Sync(), update="", partials="", combine="", snapshot_dir=None, snapshot_secs=1.0, rejoin_timeout=60.0,
)  # fmt: skip


def push(worker: int, rows: int, sequence: int = 1) -> Push:
    return Push(worker, "first", sequence, 0, rows)


def test_means_are_weighed_by_rows() -> None:
    metrics = Metrics(len(WORKERS))
    one, other = push(0, rows=30), push(1, rows=10)
    metrics.add(one, {"loss": 1.0, "accuracy": 0.5})
    metrics.add(other, {"loss": 5.0, "accuracy": 0.1})
    found = metrics.means(Decision(APPLIED, 1, (one, other)))
    assert found == pytest.approx({"loss": 2.0, "accuracy": 0.4})


def test_means_of_metrics_that_are_several_numbers() -> None:
    metrics = Metrics(len(WORKERS))
    one, other = push(0, rows=30), push(1, rows=10)
    metrics.add(one, {"f1": [1.0, 0.0]})
    metrics.add(other, {"f1": [0.0, 2.0]})
    assert metrics.means(Decision(APPLIED, 1, (one, other))) == {"f1": [0.75, 0.5]}


def test_a_push_without_rows_has_no_say() -> None:
    metrics = Metrics(len(WORKERS))
    one, empty = push(0, rows=3), push(1, rows=0)
    metrics.add(one, {"loss": 1.5})
    assert metrics.means(Decision(APPLIED, 1, (one, empty))) == {"loss": 1.5}
    assert metrics.means(Decision(APPLIED, 2, (empty,))) == {}


def test_where_nobody_tells_metrics_there_are_none() -> None:
    assert Metrics(len(WORKERS)).means(Decision(APPLIED, 1, (push(0, rows=3),))) == {}


def test_only_the_newest_metrics_are_remembered() -> None:
    metrics = Metrics(len(WORKERS))
    pushes = [push(0, rows=1, sequence=number) for number in range(1000)]
    for each in pushes:
        metrics.add(each, {"loss": float(each.sequence)})
    assert metrics.means(Decision(APPLIED, 1, (pushes[-1],))) == {"loss": 999.0}
    assert metrics.means(Decision(APPLIED, 1, (pushes[0],))) == {}


def test_data_must_begin_as_those_of_the_first_who_told() -> None:
    core = ModelCore(CONFIG, "first")
    core.check_same(1, number=0, digest=b"a")
    core.check_same(0, number=0, digest=b"a")
    core.check_same(0, number=1, digest=b"b")
    with pytest.raises(
        StrategyError, match="first batch of /job:worker/task:1 is not that of /job:worker/task:0"
    ):
        core.check_same(1, number=1, digest=b"c")
