"""The example of towers runs, on virtual devices and with GPUs that are not there, and learns the same."""

import re
import subprocess
import sys
from pathlib import Path

from process.devices.scripts import clean_environment

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "towers.py"


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(EXAMPLE), *arguments],
        env=clean_environment(JAX_PLATFORMS="cpu"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def losses_and_log(process: subprocess.Popen[str]) -> tuple[list[float], str]:
    out, log = process.communicate(timeout=100)
    assert process.returncode == 0, log
    return [float(loss) for loss in re.findall(r"loss ([\d.]+)", out)], log


def test_towers() -> None:
    with start() as here, start("gpu") as elsewhere:
        try:
            losses, log = losses_and_log(here)
            softly, soft_log = losses_and_log(elsewhere)
        finally:
            here.kill()
            elsewhere.kill()
    assert len(losses) == 5
    assert losses[-1] < losses[0] / 2
    for tower in range(2):
        assert f"tower_{tower}: (Program): /job:localhost/replica:0/task:0/device:CPU:{tower}\n" in log

    assert "this process has no /device:GPU:1: /device:CPU:0 is used instead" in soft_log
    assert "tower_1: (Program): /job:localhost/replica:0/task:0/device:CPU:0\n" in soft_log
    assert softly == losses


def test_it_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 60
