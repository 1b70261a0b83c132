"""The examples for Flax and Equinox run, alone and as clusters, and learn; that for NNX does so for README."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
EXAMPLES = ["flax_nnx.py", "flax_linen.py", "equinox_mlp.py"]


def run(*argv: str) -> str:
    """What a command prints, compiled as fast as XLA can."""
    done = subprocess.run(
        [sys.executable, *argv, "--epochs", "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def accuracy(out: str) -> float:
    (found,) = re.findall(r"test accuracy ([\d.]+)", out)
    return float(found)


def losses(out: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss ([\d.]+)", out)]


@pytest.mark.parametrize("example", EXAMPLES)
def test_they_are_short(example: str) -> None:
    assert len((ROOT / "examples" / example).read_text().splitlines()) < 100


def test_flax_linen() -> None:
    alone = run("examples/flax_linen.py")
    together = run("-m", "stratagem", "run", "--workers", "2", "examples/flax_linen.py")
    assert min(accuracy(alone), accuracy(together)) > 0.8
    assert len(losses(alone)) == len(losses(together)) == 2


def test_equinox() -> None:
    alone = run("examples/equinox_mlp.py")
    together = run("-m", "stratagem", "run", "--workers", "2", "examples/equinox_mlp.py")
    assert min(accuracy(alone), accuracy(together)) > 0.8
    assert losses(alone) == pytest.approx(losses(together), abs=1e-3)
