"""The examples for Flax and Equinox run, alone in a fresh process and as clusters, and learn; that for NNX for README."""

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from drills.nursery import ROOT, Nursery

EXAMPLES = ["flax_nnx.py", "flax_linen.py", "equinox_mlp.py"]
TOGETHER = ("stratagem", "run", "--workers", "2")
EPOCHS = ("--epochs", "2")


@pytest.fixture(scope="module")
def flax_nursery() -> Iterator[Nursery]:
    """One whose tasks need not import Flax and Equinox."""
    with Nursery(modules=["flax.linen", "equinox"]) as nursery:
        yield nursery


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


@pytest.mark.parametrize("example", EXAMPLES)
def test_they_are_short(example: str) -> None:
    assert len((ROOT / "examples" / example).read_text().splitlines()) < 100


def test_flax_linen(flax_nursery: Nursery) -> None:
    alone = run("examples/flax_linen.py")
    together = flax_nursery.said(*TOGETHER, "examples/flax_linen.py", *EPOCHS)
    assert min(accuracy(alone), accuracy(together)) > 0.8
    assert len(losses(alone)) == len(losses(together)) == 2


def test_equinox(flax_nursery: Nursery) -> None:
    alone = run("examples/equinox_mlp.py")
    together = flax_nursery.said(*TOGETHER, "examples/equinox_mlp.py", *EPOCHS)
    assert min(accuracy(alone), accuracy(together)) > 0.8
    assert losses(alone) == pytest.approx(losses(together), abs=1e-3)
