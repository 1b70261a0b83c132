"""The placement log: the mapping once, then whole lines; nothing when it is off."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from stratagem.devices import LocalDevice, configure, local, log_placement
from stratagem.devices.local import PlacementLog

DEVICE: Any = object()
CPU = LocalDevice("/job:localhost/replica:0/task:0/device:CPU:0", DEVICE, "cpu, cpu:0")
MAPPING = "Device mapping:\n/job:localhost/replica:0/task:0/device:CPU:0 -> cpu, cpu:0\n"


@pytest.fixture(autouse=True)
def fresh_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(local, "_placement_log", PlacementLog(lambda: [CPU]))
    yield
    configure(log_device_placement=False)


def test_silent_unless_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    log_placement("w1", "Variable", "not even read")
    assert capfd.readouterr() == ("", "")


def test_mapping_then_lines(capfd: pytest.CaptureFixture[str]) -> None:
    configure(log_device_placement=True)
    log_placement("w1", "Variable", "/job:ps/cpu:0")
    log_placement("step", "Program", "/gpu:1")
    out, err = capfd.readouterr()
    assert out == ""
    assert err == (
        f"{MAPPING}w1: (Variable): /job:ps/replica:0/task:0/device:CPU:0\n"
        "step: (Program): /job:localhost/replica:0/task:0/device:GPU:1\n"
    )


def test_may_be_switched_at_any_time(capfd: pytest.CaptureFixture[str]) -> None:
    for on in (True, False, True):
        configure(log_device_placement=on)
        log_placement("w1", "Variable", "/job:ps/task:1")
    line = "w1: (Variable): /job:ps/replica:0/task:1\n"
    assert capfd.readouterr().err == MAPPING + line + line


def test_lines_of_threads_stay_whole(capfd: pytest.CaptureFixture[str]) -> None:
    configure(log_device_placement=True)

    def work() -> None:
        for _ in range(50):
            log_placement("w" * 300, "Variable", "/cpu:0")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    lines = capfd.readouterr().err.removeprefix(MAPPING).splitlines()
    assert lines == [f"{'w' * 300}: (Variable): /job:localhost/replica:0/task:0/device:CPU:0"] * 400
