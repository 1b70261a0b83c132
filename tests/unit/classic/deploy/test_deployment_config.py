"""DeploymentConfig: slim's devices, scopes and refusals."""

import doctest
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import stratagem as sg
from stratagem.classic.deploy import DeploymentConfig
from stratagem.classic.deploy import deployment_config as config_module
from stratagem.devices import current_device

VARIABLE = np.zeros(3)


def test_defaults() -> None:
    config = DeploymentConfig()
    assert (config.num_clones, config.clone_on_cpu, config.replica_id) == (1, False, 0)
    assert (config.num_replicas, config.num_ps_tasks) == (1, 0)
    assert config.ps_device == config.worker_device == ""
    assert config.caching_device() is None
    assert config.clone_device(0) == "/device:GPU:0"
    assert config.clone_scope(0) == ""
    assert config.optimizer_device() == config.inputs_device() == config.variables_device() == "/device:CPU:0"


def test_arguments_keep_their_order() -> None:
    config = DeploymentConfig(2, True, 1, 3, 4, "trainer", "server")
    assert (config.num_clones, config.clone_on_cpu, config.replica_id) == (2, True, 1)
    assert (config.num_replicas, config.num_ps_tasks) == (3, 4)
    assert (config.worker_device, config.ps_device) == ("/job:trainer", "/job:server")


def test_on_the_cpu() -> None:
    config = DeploymentConfig(num_clones=2, clone_on_cpu=True)
    assert [config.clone_device(index) for index in range(2)] == ["/device:CPU:0"] * 2


def test_several_gpus() -> None:
    config = DeploymentConfig(num_clones=2)
    assert [config.clone_device(index) for index in range(2)] == ["/device:GPU:0", "/device:GPU:1"]
    assert [config.clone_scope(index) for index in range(2)] == ["clone_0", "clone_1"]
    assert config.optimizer_device() == config.inputs_device() == config.variables_device() == "/device:CPU:0"


def test_parameter_servers() -> None:
    config = DeploymentConfig(num_clones=2, num_replicas=2, num_ps_tasks=2)
    assert (config.ps_device, config.worker_device) == ("/job:ps", "/job:worker")
    assert config.clone_device(1) == "/job:worker/device:GPU:1"
    assert config.optimizer_device() == config.inputs_device() == "/job:worker/device:CPU:0"
    caching = config.caching_device()
    assert caching is not None
    assert caching(SimpleNamespace(device="/job:worker")) == "/job:worker"


def test_variables_go_to_the_servers_in_turn() -> None:
    config = DeploymentConfig(num_ps_tasks=2)
    with sg.device(config.variables_device()):
        devices = [current_device(VARIABLE).to_string() for _ in range(3)]
        assert current_device().to_string() == ""  # no variable: not placed
    assert devices == [f"/job:ps/task:{task}/device:CPU:0" for task in (0, 1, 0)]
    with sg.device(config.variables_device()):  # a new round
        assert current_device(VARIABLE).task == 0
    choose: Any = DeploymentConfig(num_ps_tasks=1).variables_device()
    assert [choose(VARIABLE) for _ in range(2)] == ["/job:ps/task:0/device:CPU:0"] * 2


def test_without_clones_there_is_no_device_for_the_optimizer() -> None:
    assert DeploymentConfig(num_clones=0).optimizer_device() == ""
    assert DeploymentConfig(num_clones=0, num_ps_tasks=1).optimizer_device() == "/job:worker/device:CPU:0"


def test_devices_of_other_kinds() -> None:
    config = DeploymentConfig(num_clones=2, num_ps_tasks=1, clone_devices=["/tpu:0", "/cpu:1"])
    assert [config.clone_device(index) for index in range(2)] == [
        "/job:worker/device:TPU:0",
        "/job:worker/device:CPU:1",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_replicas": 2}, "num_ps_tasks must be positive, not 0"),
        ({"num_ps_tasks": 1, "worker_job_name": ""}, "worker_job_name is ''"),
        ({"num_ps_tasks": 1, "ps_job_name": ""}, "ps_job_name is ''"),
        ({"replica_id": 1}, "replica_id is 1; it must be less than num_replicas, which is 1"),
        ({"num_clones": -1}, "num_clones is -1"),
        ({"num_clones": 1.5}, r"num_clones is 1\.5"),
        ({"num_clones": 2, "clone_devices": ["/cpu:0"]}, "names 1 device"),
        ({"num_clones": 6, "clone_devices": "/cpu:0"}, "clone_devices is '/cpu:0'; give a list of devices"),
        ({"clone_on_cpu": True, "clone_devices": ["/cpu:0"]}, "leave out clone_on_cpu"),
    ],
)
def test_what_does_not_fit_together(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DeploymentConfig(**arguments)


@pytest.mark.parametrize("index", [2, -1])
def test_no_such_clone(index: int) -> None:
    config = DeploymentConfig(num_clones=2)
    for ask in (config.clone_device, config.clone_scope):
        with pytest.raises(ValueError, match="must be less than num_clones, which is 2"):
            ask(index)


def test_examples() -> None:
    result = doctest.testmod(config_module)
    assert result.attempted > 0
    assert result.failed == 0
