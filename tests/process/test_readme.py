"""What README says is so: its code is the examples' code, the examples run, its commands exist."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()

EXAMPLES = ["keras_digits.py", "jax_digits.py", "jax_parameter_servers.py", "jax_on_servers.py"]


def run(*argv: str, **environ: str) -> str:
    result = subprocess.run(
        [sys.executable, *argv],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_its_code_is_the_examples_code() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    examples = [(ROOT / "examples" / name).read_text() for name in EXAMPLES]
    assert blocks == examples


def test_its_commands_exist_and_ci_knows_no_others() -> None:
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    named = set(re.findall(r"make ([a-z-]+)", README))
    assert named <= targets
    assert set(re.findall(r"make ([a-z-]+)", (ROOT / ".ci" / "run").read_text())) <= named


def test_keras_example() -> None:
    out = run("examples/keras_digits.py", KERAS_BACKEND="jax")
    accuracy = float(re.findall(r"accuracy: ([\d.]+)", out)[-1])
    assert accuracy > 0.9


def test_jax_example_is_the_same_alone_and_together() -> None:
    alone = re.findall(r"loss ([\d.]+)", run("examples/jax_digits.py"))
    together = re.findall(
        r"loss ([\d.]+)", run("-m", "stratagem", "run", "--workers", "2", "examples/jax_digits.py")
    )
    assert len(alone) == len(together) == 5
    for one, two in zip(alone, together, strict=True):
        assert abs(float(one) - float(two)) < 0.001


def test_parameter_server_example() -> None:
    out = run("-m", "stratagem", "run", "--ps", "2", "--workers", "3", "examples/jax_parameter_servers.py")
    found = re.findall(r"(\d+) updates, accuracy ([\d.]+)", out)
    assert len(found) == 3
    assert all(400 <= int(updates) <= 402 and float(accuracy) > 0.9 for updates, accuracy in found)


def test_single_client_example() -> None:
    out = run(
        "-m",
        "stratagem",
        "run",
        "--ps",
        "1",
        "--workers",
        "2",
        "--single-client",
        "examples/jax_on_servers.py",
    )
    found = re.search(r"\[chief:0\] +losses \[(.*?)\]", out)
    assert found
    losses = [float(loss) for loss in found[1].split(",")]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 4


def test_demo_trains_the_same_model_twice() -> None:
    out = run("-m", "stratagem", "demo")
    accuracies = re.findall(r"accuracy on 359 test digits: ([\d.]+) %", out)
    assert len(accuracies) == 2
    assert min(map(float, accuracies)) > 95
