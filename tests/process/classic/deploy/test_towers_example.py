"""The example of towers runs, on virtual devices and with GPUs that are not there, and learns the same."""

import re
import subprocess
import sys

from drills.nursery import ROOT, Nursery
from drills.quick_compiling import QUICKLY
from process.devices.scripts import clean_environment

EXAMPLE = ROOT / "examples" / "towers.py"


def losses_and_log(done: subprocess.CompletedProcess[str]) -> tuple[list[float], str]:
    assert done.returncode == 0, done.stderr
    return [float(loss) for loss in re.findall(r"loss ([\d.]+)", done.stdout)], done.stderr


def test_towers(nursery: Nursery) -> None:
    environ = clean_environment(JAX_PLATFORMS="cpu", **QUICKLY)
    words = [sys.executable, "-W", "error", str(EXAMPLE)]
    fresh = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=100)
    losses, log = losses_and_log(fresh)
    softly, soft_log = losses_and_log(nursery.command(ROOT, [str(EXAMPLE), "gpu"], environ, 100))
    assert len(losses) == 5
    assert losses[-1] < losses[0] / 2
    for tower in range(2):
        assert f"tower_{tower}: (Program): /job:localhost/replica:0/task:0/device:CPU:{tower}\n" in log

    assert "this process has no /device:GPU:1: /device:CPU:0 is used instead" in soft_log
    assert "tower_1: (Program): /job:localhost/replica:0/task:0/device:CPU:0\n" in soft_log
    assert softly == losses


def test_it_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 60
