"""The examples for Flax and Equinox run, alone in a fresh process and as clusters, and learn."""

import re
import subprocess
import sys

import pytest

from drills.nursery import ROOT, Nursery

TOGETHER = ("stratagem", "run", "--workers", "2")
EPOCHS = ("--epochs", "2")


def run(example: str) -> str:
    """What an example prints, alone."""
    done = subprocess.run(
        [sys.executable, example, *EPOCHS],
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


def test_flax_linen(nursery: Nursery) -> None:
    alone = run("examples/flax_linen.py")
    together = nursery.said(*TOGETHER, "examples/flax_linen.py", *EPOCHS)
    assert min(accuracy(alone), accuracy(together)) > 0.8
    assert len(losses(alone)) == len(losses(together)) == 2


def test_equinox(nursery: Nursery) -> None:
    alone = run("examples/equinox_mlp.py")
    together = nursery.said(*TOGETHER, "examples/equinox_mlp.py", *EPOCHS)
    assert min(accuracy(alone), accuracy(together)) > 0.8
    assert losses(alone) == pytest.approx(losses(together), abs=1e-3)
