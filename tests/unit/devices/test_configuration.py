"""configure: what it refuses, without starting or changing anything."""

from typing import Any

import pytest

from stratagem.devices import DeviceSpec, configure
from stratagem.devices.configuration import VisibleDevices
from stratagem.devices.local import placement_settings
from stratagem.errors import ConfigurationError


@pytest.mark.parametrize("value", [0, -1, "2", True, False, 2.0, [2]])
def test_number_of_devices_is_checked(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"virtual_devices is .*at least 1.*sg.configure"):
        configure(virtual_devices=value)


@pytest.mark.parametrize("name", ["memory_growth", "soft_placement", "log_device_placement"])
@pytest.mark.parametrize("value", [0, 1, "yes"])
def test_switches_are_checked(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is {value!r}; it has to be True, False"):
        configure(**{name: value})


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("/gpu:0", "has to be a list"),
        (3, "has to be a list"),
        ([], "names no device at all"),
        (["gpu0"], "has 'gpu0': 'gpu0' is not a device"),
        ([0], "has 0"),
        (["/job:ps/gpu:0"], "names another task"),
        (["/tpu:0"], "only CPUs and GPUs.*TPU_VISIBLE_CHIPS"),
        (["/job:localhost"], "only CPUs and GPUs"),
    ],
)
def test_visible_devices_are_checked(names: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        configure(visible_devices=names)


def test_nothing_is_changed_when_something_is_wrong() -> None:
    before = placement_settings()
    with pytest.raises(ConfigurationError):
        configure(soft_placement=True, virtual_devices=0)
    assert placement_settings() == before


@pytest.mark.parametrize(
    ("names", "configuration"),
    [
        (["/gpu:1"], {"jax_cuda_visible_devices": "1", "jax_rocm_visible_devices": "1"}),
        (["/gpu:2", "/gpu:0"], {"jax_cuda_visible_devices": "0,2", "jax_rocm_visible_devices": "0,2"}),
        (["/cpu:0", "/gpu:*"], {"jax_cuda_visible_devices": "all", "jax_rocm_visible_devices": "all"}),
        (["/cpu:0"], {"jax_platforms": "cpu"}),
        ([DeviceSpec(device_type="CPU")], {"jax_platforms": "cpu"}),
    ],
)
def test_what_jax_is_told(names: Any, configuration: dict[str, str]) -> None:
    assert VisibleDevices.parse(names).jax_configuration() == configuration


def test_a_choice_of_gpus_hides_the_others() -> None:
    assert VisibleDevices.parse(["/gpu:1"]) == VisibleDevices(gpus=(1,), cpus=None)


def test_cpu_devices_cannot_be_hidden_one_by_one() -> None:
    VisibleDevices.parse(["/cpu:1", "/cpu:0"]).check_cpus(2)
    VisibleDevices.parse(["/cpu:*"]).check_cpus(2)
    VisibleDevices.parse(["/gpu:1"]).check_cpus(2)
    with pytest.raises(ConfigurationError, match=r"names /cpu:1, but JAX is to have 2 CPU device"):
        VisibleDevices.parse(["/cpu:1"]).check_cpus(2)
