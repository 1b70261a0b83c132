"""The first examples run, alone and as clusters: what they print is as good as it should be."""

import re
from pathlib import Path

import pytest

from drills.nursery import ROOT, Nursery

RUN = ("stratagem", "run")
SERVED = (*RUN, "--ps", 1, "--workers", 2)
MOST_LINES = 100


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_they_are_short(example: Path) -> None:
    assert len(example.read_text().splitlines()) < MOST_LINES


def test_jax_is_the_same_alone_and_together(nursery: Nursery) -> None:
    alone, together = (
        [
            float(loss)
            for loss in re.findall(r"loss ([\d.]+)", nursery.said(*command, "examples/jax_digits.py"))
        ]
        for command in ((), (*RUN, "--workers", 2))
    )
    assert len(alone) == len(together) == 5
    assert alone == pytest.approx(together, abs=1e-3)


@pytest.mark.parametrize(
    "options",
    [("--steps", 60), ("--steps", 120, "--accumulate", 2, "--half", "--remat", "--shard_state")],
    ids=["as it is", "in less memory"],
)
def test_a_language_model(options: tuple[object, ...], nursery: Nursery) -> None:
    small = ("--layers", 1, "--width", 64, "--length", 16)
    out = nursery.said(*RUN, "--workers", 2, "examples/language_model.py", *small, *options)
    (loss,) = re.findall(r"loss ([\d.]+) on text never seen", out)
    assert float(loss) < 3.6  # 4.6 for one that knows nothing


@pytest.mark.parametrize(
    ("command", "strategy"), [((), "mirrored"), (SERVED, "parameter-server")], ids=["mirrored", "served"]
)
def test_flax_nnx(command: tuple[object, ...], strategy: str, nursery: Nursery) -> None:
    out = nursery.said(*command, "examples/flax_nnx.py", "--strategy", strategy)
    (accuracy,) = re.findall(r"test accuracy ([\d.]+)", out)
    assert float(accuracy) > 0.85


def test_a_single_client(nursery: Nursery) -> None:
    out = nursery.said(*SERVED, "--single-client", "examples/jax_on_servers.py")
    found = re.search(r"\[chief:0\] +losses \[(.*?)\]", out)
    assert found
    losses = [float(loss) for loss in found[1].split(",")]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 4


def test_the_estimator_goes_on_under_another_strategy(nursery: Nursery, tmp_path: Path) -> None:
    script = ("examples/estimator_digits.py", "--model_dir", tmp_path)
    outputs = [
        nursery.said(*script),
        nursery.said(*SERVED, "--evaluator", *script, "--strategy", "ps", "--steps", 800),
    ]
    found = [re.findall(r"step (\d+), accuracy ([\d.]+)", out)[-1] for out in outputs]
    first, second = (int(step) for step, _ in found)
    assert first < 800 <= second
    assert min(float(accuracy) for _, accuracy in found) > 0.9
