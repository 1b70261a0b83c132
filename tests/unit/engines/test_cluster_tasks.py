"""A strategy in a cluster that it does not use, or lacks something of: said once, by the chief, with fitting advice."""

import json
import logging
from collections.abc import Callable

import pytest

import stratagem as sg
from stratagem.engines import cluster_tasks
from stratagem.strategies.base import Strategy

MPI = {
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_tasks, "_settled", set())
    monkeypatch.setattr("sys.argv", ["train.py"])


def launched(monkeypatch: pytest.MonkeyPatch, job: str = "worker", index: int = 0, **counts: int) -> None:
    """As `stratagem run` starts a task."""
    ports = iter(range(20000, 21000))
    cluster = {job: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for job, count in counts.items()}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": job, "index": index}}))
    monkeypatch.setenv("STRATAGEM_RUN", "a run")


@pytest.mark.parametrize("make", [sg.OneDeviceStrategy, sg.MirroredStrategy, sg.CentralStorageStrategy])
def test_workers_that_each_train_alone(
    make: Callable[[], Strategy], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    launched(monkeypatch, worker=2)
    make()
    make()
    (record,) = caplog.records  # once
    assert record.levelno == logging.WARNING
    name = make.__name__
    assert (
        f"{name} trains in one process alone, and the cluster (TF_CONFIG) has 2 tasks that train"
        in record.getMessage()
    )
    assert "use MultiWorkerMirroredStrategy" in record.getMessage()
    assert "start it with `stratagem run --workers 1 SCRIPT`" in record.getMessage()


def test_servers_without_work(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    launched(monkeypatch, worker=1, ps=1)
    sg.MultiWorkerMirroredStrategy()
    (message,) = [record.getMessage() for record in caplog.records]
    assert "MultiWorkerMirroredStrategy uses no parameter servers: 1 ps task of the cluster" in message
    assert "Use ParameterServerStrategy" in message and "`stratagem run --workers 1 SCRIPT`" in message


@pytest.mark.parametrize(
    ("job", "index", "counts"),
    [
        ("worker", 1, {"worker": 2, "ps": 1}),  # the chief says it for all
        ("evaluator", 0, {"worker": 2}),
        ("worker", 0, {"worker": 1}),
    ],
)
def test_nothing_to_say(
    job: str,
    index: int,
    counts: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    launched(monkeypatch, job, index, **counts)
    sg.OneDeviceStrategy()
    assert caplog.records == []


def test_a_strategy_beside_one_of_all_tasks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    launched(monkeypatch, worker=2, ps=1)
    config = sg.resolve_cluster()
    assert config is not None
    cluster_tasks.check_jobs("ParameterServerStrategy", sg.ParameterServerStrategy.jobs, config)
    sg.OneDeviceStrategy()  # to evaluate with, say
    assert caplog.records == []


def test_what_trains_alone_does_not_mind_a_wrong_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**MPI, "OMPI_COMM_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    assert sg.OneDeviceStrategy().num_replicas_in_sync == 1


def test_servers_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    launched(monkeypatch, worker=2)
    with pytest.raises(sg.StrategyError, match="start it with `stratagem run --ps 1 --workers 2 SCRIPT`; or"):
        sg.ParameterServerStrategy()


def test_servers_that_are_missing_under_open_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in MPI.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(sg.StrategyError, match="the cluster has no ps task, only worker") as caught:
        sg.ParameterServerStrategy()
    assert "mpirun -n 1 python SCRIPT HOSTS --job_name=ps --task_index=0 : " in str(caught.value)
    assert "stratagem run" not in str(caught.value)
