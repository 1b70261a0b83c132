"""replica_device_setter: variables to the servers, all else to the worker."""

import jax.numpy as jnp
import numpy as np
import pytest

from stratagem.cluster import ClusterSpec
from stratagem.devices import (
    DeviceSpec,
    GreedyLoadBalancing,
    RoundRobin,
    current_device,
    device,
    replica_device_setter,
)
from stratagem.errors import ClusterError, ConfigurationError, DeviceSpecError

CLUSTER = {"ps": ["a:1", "b:1"], "worker": ["c:1", "d:1"]}
VARIABLE = np.zeros((3, 2), np.float32)


def test_round_robin_by_default() -> None:
    for cluster in (CLUSTER, ClusterSpec(CLUSTER)):
        setter = replica_device_setter(cluster=cluster)
        assert setter is not None
        assert [setter(VARIABLE) for _ in range(3)] == ["/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:0"]


def test_what_is_no_variable_goes_to_the_worker() -> None:
    setter = replica_device_setter(ps_tasks=1, worker_device="/job:worker/task:3")
    assert setter is not None
    assert setter(None) == setter("matmul") == "/job:worker/task:3"


def test_none_without_servers() -> None:
    assert replica_device_setter() is None
    assert replica_device_setter(cluster={"worker": ["a:1"]}) is None
    assert replica_device_setter(cluster={"worker": ["a:1"], "ps": []}) is None
    assert replica_device_setter(cluster=CLUSTER, ps_device="/job:sparse") is None
    assert replica_device_setter(cluster=CLUSTER, ps_device="") is None


def test_without_a_device_for_servers_all_goes_to_the_worker() -> None:
    setter = replica_device_setter(ps_tasks=2, ps_device="")
    assert setter is not None and setter(VARIABLE) == "/job:worker"


def test_device_of_the_servers_is_merged() -> None:
    setter = replica_device_setter(cluster=CLUSTER, ps_device="/job:ps/cpu:0")
    assert setter is not None and setter(VARIABLE) == "/job:ps/task:0/device:CPU:0"


def test_cluster_wins_over_ps_tasks() -> None:
    setter = replica_device_setter(cluster={"ps": ["a:1"]}, ps_tasks=5)
    assert setter is not None and [setter(VARIABLE), setter(VARIABLE)] == ["/job:ps/task:0"] * 2


def test_servers_may_have_gaps() -> None:
    setter = replica_device_setter(cluster={"ps": {1: "a:1", 4: "b:1"}})
    assert setter is not None and [setter(VARIABLE), setter(VARIABLE)] == ["/job:ps/task:1", "/job:ps/task:4"]


def test_by_load() -> None:
    setter = replica_device_setter(cluster=CLUSTER, ps_strategy=GreedyLoadBalancing())
    assert setter is not None
    sizes = [jnp.zeros(10), jnp.zeros(4), jnp.zeros(4), jnp.zeros(4)]
    assert [setter(variable)[-1] for variable in sizes] == ["0", "1", "1", "1"]


def test_by_a_function() -> None:
    setter = replica_device_setter(cluster=CLUSTER, ps_strategy=lambda variable: variable.ndim - 1)
    assert setter is not None and setter(VARIABLE) == "/job:ps/task:1"
    with pytest.raises(ConfigurationError, match=r"gave task 2 for .*are 0, 1"):
        setter(np.zeros((1, 1, 1)))


def test_wrong_arguments() -> None:
    with pytest.raises(ConfigurationError, match="ps_tasks is -1"):
        replica_device_setter(ps_tasks=-1)
    with pytest.raises(ConfigurationError, match=r"ps_strategy is 3; .*sg.RoundRobin\(\)"):
        replica_device_setter(ps_tasks=1, ps_strategy=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="ps_strategy is <class"):
        replica_device_setter(ps_tasks=1, ps_strategy=RoundRobin)  # type: ignore[arg-type]
    with pytest.raises(DeviceSpecError, match="jobs:ps"):
        replica_device_setter(ps_tasks=1, ps_device="/jobs:ps")
    with pytest.raises(ClusterError):
        replica_device_setter(cluster=2)  # type: ignore[arg-type]


def test_in_a_device_block() -> None:
    setter = replica_device_setter(cluster=CLUSTER)
    with device(setter):
        assert current_device() == DeviceSpec(job="worker")
        assert current_device(VARIABLE).to_string() == "/job:ps/task:0"
        with device("/cpu:1"):
            assert current_device(VARIABLE).to_string() == "/job:ps/task:1/device:CPU:1"
        with device("/job:worker"):  # another job takes no turn of the servers
            assert current_device(VARIABLE).to_string() == "/job:worker"
        assert current_device(VARIABLE).to_string() == "/job:ps/task:0"
    with device("/job:other/task:9/gpu:0"), device(setter):
        assert current_device(VARIABLE).to_string() == "/job:ps/task:1/device:GPU:0"
