"""The order of the sources, and where the arguments come from."""

import doctest
import importlib
import json
import logging
import pkgutil
import sys

import pytest

import stratagem.cluster
from stratagem.cluster import resolve_cluster
from stratagem.errors import ClusterError

FLAGS = ["--worker_hosts=a:1", "--job_name=worker", "--task_index=0"]
TF_CONFIG = {
    "TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}})
}
# Every source of the environment, first to last.
SOURCES: dict[str, dict[str, str]] = {
    "TF_CONFIG": TF_CONFIG,
    "Kubeflow JAXJob": {"COORDINATOR_ADDRESS": "j-worker-0:1", "NUM_PROCESSES": "2", "PROCESS_ID": "0"},
    "Kubeflow Trainer": {
        "JAX_COORDINATOR_ADDRESS": "j-node-0-0.j:1",
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": "0",
    },
    "Slurm": {"SLURM_STEP_NODELIST": "n1", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_PROCID": "0"},
    "Open MPI": {
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    },
}


def environment_of(sources: list[str]) -> dict[str, str]:
    return {name: value for source in sources for name, value in SOURCES[source].items()}


@pytest.mark.parametrize("first", range(len(SOURCES)))
def test_the_first_source_wins_and_the_log_says_so(first: int, caplog: pytest.LogCaptureFixture) -> None:
    names = list(SOURCES)[first:]
    with caplog.at_level(logging.INFO, logger="stratagem"):
        config = resolve_cluster([], environment_of(names))
    assert config is not None
    assert config.source == names[0]
    passed = f"; ignored: {', '.join(names[1:])}" if names[1:] else ""
    assert caplog.messages == [f"Cluster from {names[0]}: this is worker 0{passed}"]


def test_flags_come_before_everything(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="stratagem"):
        config = resolve_cluster(FLAGS, environment_of(list(SOURCES)))
    assert config is not None
    assert config.source == "flags"
    assert f"ignored: {', '.join(SOURCES)}" in caplog.text


def test_nothing_set_is_no_cluster(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="stratagem"):
        assert resolve_cluster([], {}) is None
    assert not caplog.messages


def test_a_local_tf_config_decides_too(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="stratagem"):
        assert resolve_cluster([], {**SOURCES["Slurm"], "TF_CONFIG": "{}"}) is None
    assert caplog.messages == ["Cluster from TF_CONFIG: no cluster, a local run; ignored: Slurm"]


def test_what_is_passed_over_may_be_wrong() -> None:
    config = resolve_cluster(FLAGS, {"TF_CONFIG": "{", **SOURCES["Slurm"], "SLURM_STEP_TASKS_PER_NODE": "?"})
    assert config is not None


def test_what_decides_must_not_be_wrong() -> None:
    with pytest.raises(ClusterError, match="TF_CONFIG is not JSON"):
        resolve_cluster([], {**SOURCES["Slurm"], "TF_CONFIG": "{"})


def test_asks_this_process_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py"])
    monkeypatch.setenv("TF_CONFIG", TF_CONFIG["TF_CONFIG"])
    config = resolve_cluster()
    assert config is not None
    assert config.source == "TF_CONFIG"
    monkeypatch.setattr(sys, "argv", ["train.py", *FLAGS])
    config = resolve_cluster()
    assert config is not None
    assert config.source == "flags"


MODULES = sorted(
    found.name for found in pkgutil.walk_packages(stratagem.cluster.__path__, "stratagem.cluster.")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
