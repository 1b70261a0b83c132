"""The devices of this process: their names, the search, soft placement."""

import logging
from collections.abc import Iterator

import jax
import pytest

from stratagem.devices import DeviceSpec, find_device, list_devices, local
from stratagem.errors import DeviceNotFoundError, DeviceSpecError
from unit.devices.fakes import FakeDevice

CPU, OTHER_CPU = FakeDevice("cpu", 0), FakeDevice("cpu", 1)
GPUS = [FakeDevice("cuda", 2), FakeDevice("cuda", 5)]
NAME = "/job:localhost/replica:0/task:0/device"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two CPU devices and two GPUs whose numbers in JAX are not ours."""
    monkeypatch.setattr(local, "local_jax_devices", lambda: [CPU, OTHER_CPU, *GPUS])
    monkeypatch.setattr(local, "default_jax_device", lambda: GPUS[0])


@pytest.fixture
def soft(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(local, "_past_warnings", set())
    local.change_placement(soft_placement=True)
    yield
    local.change_placement(soft_placement=False)


def test_this_process() -> None:
    first = list_devices()[0]
    assert first.name == f"{NAME}:CPU:0"
    assert first.device == jax.local_devices(backend="cpu")[0]
    assert "cpu" in first.description.lower()


@pytest.mark.usefixtures("machine")
def test_numbered_within_each_type() -> None:
    assert [device.name for device in list_devices()] == [
        f"{NAME}:CPU:0",
        f"{NAME}:CPU:1",
        f"{NAME}:GPU:0",
        f"{NAME}:GPU:1",
    ]
    assert list_devices()[3].description == "fake, cuda:5"


@pytest.mark.parametrize(
    ("platform", "kind"), [("cuda", "GPU"), ("rocm", "GPU"), ("gpu", "GPU"), ("tpu", "TPU")]
)
def test_platforms(monkeypatch: pytest.MonkeyPatch, platform: str, kind: str) -> None:
    monkeypatch.setattr(local, "local_jax_devices", lambda: [CPU, FakeDevice(platform, 0)])
    assert find_device(f"/{kind}:0").device == FakeDevice(platform, 0)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("/gpu:1", GPUS[1]),
        ("/gpu", GPUS[0]),
        ("/device:CPU:1", OTHER_CPU),
        ("/job:localhost/gpu:0", GPUS[0]),
        ("/job:localhost/replica:0/task:0/device:GPU:1", GPUS[1]),
        ("", GPUS[0]),
        (DeviceSpec(device_type="CPU"), CPU),
    ],
)
def test_finds(name: str | DeviceSpec, found: FakeDevice) -> None:
    assert find_device(name).device == found


@pytest.mark.usefixtures("machine")
def test_missing_devices_are_answered_with_those_that_are_there() -> None:
    with pytest.raises(
        DeviceNotFoundError, match=r"no /device:GPU:2; it has .*GPU:0, /device:GPU:1\. .*soft"
    ):
        find_device("/gpu:2")
    with pytest.raises(DeviceNotFoundError, match=r"sg.configure\(virtual_devices=4\)"):
        find_device("/cpu:3")
    with pytest.raises(DeviceNotFoundError, match="device of another task"):
        find_device("/job:ps/task:0/cpu:0")
    with pytest.raises(DeviceNotFoundError, match="device of another task"):
        find_device("/job:localhost/task:1")
    with pytest.raises(DeviceSpecError):
        find_device("gpu0")


@pytest.mark.usefixtures("machine", "soft")
def test_soft_placement_takes_the_cpu_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "stratagem"):
        assert [find_device(name).device for name in ("/gpu:7", "/job:localhost/gpu:7", "/tpu:0")] == [
            CPU
        ] * 3
        assert find_device("/gpu:1").device == GPUS[1]
    assert [record.getMessage() for record in caplog.records] == [
        "this process has no /device:GPU:7: /device:CPU:0 is used instead (soft placement)",
        "this process has no /device:TPU:0: /device:CPU:0 is used instead (soft placement)",
    ]


@pytest.mark.usefixtures("soft")
def test_soft_placement_needs_a_cpu_and_does_not_move_other_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "local_jax_devices", lambda: GPUS)
    with pytest.raises(DeviceNotFoundError):
        find_device("/tpu:0")
    with pytest.raises(DeviceNotFoundError):
        find_device("/job:ps/task:0/gpu:0")
