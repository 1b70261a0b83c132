"""The two Kubeflow systems that tell JAX processes the address of process 0."""

import re

import pytest

from stratagem.cluster import ClusterSpec, resolve_cluster
from stratagem.errors import ClusterError

JAXJOB = {
    "COORDINATOR_ADDRESS": "mnist-worker-0",
    "COORDINATOR_PORT": "6666",
    "NUM_PROCESSES": "3",
    "PROCESS_ID": "1",
}
TRAINER = {
    "JAX_COORDINATOR_ADDRESS": "mnist-node-0-0.mnist:29500",
    "JAX_COORDINATOR_PORT": "29500",
    "JAX_NUM_PROCESSES": "2",
    "JAX_PROCESS_ID": "1",
}


@pytest.mark.parametrize(
    ("environ", "source", "addresses", "index"),
    [
        (JAXJOB, "Kubeflow JAXJob", ["mnist-worker-0:6666", "mnist-worker-1:6666", "mnist-worker-2:6666"], 1),
        (
            {**JAXJOB, "COORDINATOR_ADDRESS": "mnist-worker-0.space.svc", "PROCESS_ID": "0"},
            "Kubeflow JAXJob",
            [f"mnist-worker-{i}.space.svc:6666" for i in range(3)],
            0,
        ),
        (
            {**JAXJOB, "NUM_PROCESSES": "1", "PROCESS_ID": "0", "COORDINATOR_ADDRESS": "anything"},
            "Kubeflow JAXJob",
            ["anything:6666"],
            0,
        ),
        (TRAINER, "Kubeflow Trainer", ["mnist-node-0-0.mnist:29500", "mnist-node-0-1.mnist:29500"], 1),
        (
            {name: value for name, value in TRAINER.items() if name != "JAX_COORDINATOR_PORT"},
            "Kubeflow Trainer",
            ["mnist-node-0-0.mnist:29500", "mnist-node-0-1.mnist:29500"],
            1,
        ),
    ],
)
def test_numbered_hosts_make_a_dense_cluster(
    environ: dict[str, str], source: str, addresses: list[str], index: int
) -> None:
    config = resolve_cluster([], environ)
    assert config is not None
    assert config.cluster == ClusterSpec({"worker": addresses})
    assert (config.job_name, config.task_index, config.source) == ("worker", index, source)
    assert config.is_chief == (index == 0)
    assert config.announced_workers is None


@pytest.mark.parametrize(
    ("address", "port", "index", "known"),
    [
        ("10.0.0.1", "6666", 2, {0: "10.0.0.1:6666", 2: "pod7:0"}),
        ("10.0.0.1", "6666", 0, {0: "10.0.0.1:6666"}),
        ("10.0.0.1:6666", "6666", 1, {0: "10.0.0.1:6666", 1: "pod7:0"}),
        ("fd00::1", "6666", 1, {0: "[fd00::1]:6666", 1: "pod7:0"}),
        ("[fd00::1]:6666", None, 1, {0: "[fd00::1]:6666", 1: "pod7:0"}),
        ("localhost", "6666", 1, {0: "localhost:6666", 1: "localhost:0"}),
        ("127.0.0.1:6666", None, 1, {0: "127.0.0.1:6666", 1: "127.0.0.1:0"}),
    ],
)
def test_other_hosts_make_a_sparse_cluster(
    address: str, port: str | None, index: int, known: dict[int, str]
) -> None:
    environ = {
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_NUM_PROCESSES": "3",
        "JAX_PROCESS_ID": str(index),
        "HOSTNAME": "pod7",
    }
    if port is not None:
        environ["JAX_COORDINATOR_PORT"] = port
    config = resolve_cluster([], environ)
    assert config is not None
    assert config.cluster == ClusterSpec({"worker": known})
    assert config.announced_workers == 3
    assert config.task_index == index
    assert config.is_chief == (index == 0)


def test_this_host_has_a_name_even_if_the_environment_has_none() -> None:
    config = resolve_cluster([], {**JAXJOB, "COORDINATOR_ADDRESS": "10.0.0.1"})
    assert config is not None
    assert config.address is not None
    assert config.address.endswith(":0")


@pytest.mark.parametrize(
    "environ",
    [
        {"COORDINATOR_ADDRESS": "a:1"},
        {"NUM_PROCESSES": "2", "PROCESS_ID": "0"},
        {"JAX_COORDINATOR_ADDRESS": "a:1"},
        {"JAX_NUM_PROCESSES": "2"},
        {**JAXJOB, "COORDINATOR_ADDRESS": ""},
    ],
)
def test_some_of_the_variables_may_be_meant_for_others(environ: dict[str, str]) -> None:
    assert resolve_cluster([], environ) is None


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({**JAXJOB, "NUM_PROCESSES": "0"}, "NUM_PROCESSES is '0'; it must be a whole number, 1 or more"),
        ({**JAXJOB, "NUM_PROCESSES": "two"}, "NUM_PROCESSES is 'two'"),
        ({**JAXJOB, "PROCESS_ID": "-1"}, "PROCESS_ID is '-1'"),
        (
            {**JAXJOB, "PROCESS_ID": "3"},
            "PROCESS_ID is 3, but NUM_PROCESSES is 3: processes are numbered 0 to 2",
        ),
        ({**JAXJOB, "COORDINATOR_PORT": "x"}, "COORDINATOR_PORT is 'x'"),
        ({**JAXJOB, "COORDINATOR_PORT": "70000"}, "ports are 0 to 65535"),
        ({**JAXJOB, "COORDINATOR_ADDRESS": "http://a"}, "COORDINATOR_ADDRESS: "),
        ({"COORDINATOR_ADDRESS": "a", "NUM_PROCESSES": "2", "PROCESS_ID": "0"}, "'a' has no port"),
        ({"COORDINATOR_ADDRESS": "a:1", "NUM_PROCESSES": "2"}, "PROCESS_ID is not set"),
        ({"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_PROCESS_ID": "0"}, "JAX_NUM_PROCESSES is not set"),
        ({**TRAINER, "JAX_PROCESS_ID": "2"}, "JAX_PROCESS_ID is 2, but JAX_NUM_PROCESSES is 2"),
    ],
)
def test_names_the_wrong_variable(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ClusterError, match=re.escape(message)):
        resolve_cluster([], environ)
