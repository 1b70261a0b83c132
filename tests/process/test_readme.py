"""What README says is so: its code is the examples' code, its blocks run, and the numbers are as good as it says."""

import re
from collections.abc import Callable
from functools import cache

import pytest

from document_runs import Forks, follow, prepare
from documents import EXAMPLES, ROOT, read_blocks, runs_of

README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()

SCRIPTS = ["keras_digits.py", "jax_digits.py", "jax_parameter_servers.py", "jax_on_servers.py"]
RUNS = {run.text.partition("#")[0].strip(): run for run in runs_of("README.md")}
STARTED = ("make ", "keras_digits.py", "jax_digits.py", "jax_parameter_servers.py")
"""What commands have that are started as a reader would; a single client another test starts so. The others are forked."""

Printed = Callable[[str], str]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Printed:
    """What a command of README prints; each is run once."""
    directory = tmp_path_factory.mktemp("readme")
    prepare("README.md", directory)

    @cache
    def output(command: str) -> str:
        is_started = any(sign in command for sign in STARTED)
        return follow(RUNS[command], directory, None if is_started else forks)

    return output


@pytest.mark.parametrize("command", RUNS)
def test_command(command: str, printed: Printed) -> None:
    assert printed(command)


def test_its_code_is_the_examples_code() -> None:
    blocks = [block for block in read_blocks("README.md") if block.language == "python"]
    assert [block.title for block in blocks] == [f"{EXAMPLES}{name}" for name in SCRIPTS]
    assert [block.text for block in blocks] == [(ROOT / EXAMPLES / name).read_text() for name in SCRIPTS]


def test_its_commands_exist_and_ci_knows_no_others() -> None:
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    named = set(re.findall(r"make ([a-z-]+)", README))
    assert named <= targets
    assert set(re.findall(r"make ([a-z-]+)", (ROOT / ".ci" / "run").read_text())) <= named


def test_keras_example(printed: Printed) -> None:
    out = printed("python examples/keras_digits.py")
    accuracy = float(re.findall(r"accuracy: ([\d.]+)", out)[-1])
    assert accuracy > 0.9


def test_jax_example_is_the_same_alone_and_together(printed: Printed) -> None:
    alone = re.findall(r"loss ([\d.]+)", printed("python examples/jax_digits.py"))
    together = re.findall(r"loss ([\d.]+)", printed("stratagem run --workers 2 examples/jax_digits.py"))
    assert len(alone) == len(together) == 5
    for one, two in zip(alone, together, strict=True):
        assert abs(float(one) - float(two)) < 0.001


def test_parameter_server_example(printed: Printed) -> None:
    out = printed("stratagem run --ps 2 --workers 3 --max-restarts 5 examples/jax_parameter_servers.py")
    found = re.findall(r"(\d+) updates, accuracy ([\d.]+)", out)
    assert len(found) == 3
    assert all(400 <= int(updates) <= 402 and float(accuracy) > 0.9 for updates, accuracy in found)


@pytest.mark.parametrize("command", [command for command in RUNS if "flax_nnx.py" in command])
def test_flax_example(command: str, printed: Printed) -> None:
    (accuracy,) = re.findall(r"test accuracy ([\d.]+)", printed(command))
    assert float(accuracy) > 0.85


def test_single_client_example(printed: Printed) -> None:
    out = printed("stratagem run --ps 1 --workers 2 --single-client examples/jax_on_servers.py")
    found = re.search(r"\[chief:0\] +losses \[(.*?)\]", out)
    assert found
    losses = [float(loss) for loss in found[1].split(",")]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 4


def test_demo_trains_the_same_model_twice(printed: Printed) -> None:
    accuracies = re.findall(r"accuracy on 359 test digits: ([\d.]+) %", printed("make demo"))
    assert len(accuracies) == 2
    assert min(map(float, accuracies)) > 95
