"""What README says is so: its code is the examples' code, its blocks run, and the numbers are as good as it says."""

import re
from collections.abc import Callable
from functools import cache

import pytest

from document_runs import environment, follow, prepare
from documents import EXAMPLES, ROOT, read_blocks, runs_of

README = (ROOT / "README.md").read_text()
MAKEFILE, CONTRIBUTING, CI = (
    (ROOT / name).read_text() for name in ("Makefile", "CONTRIBUTING.md", ".ci/run")
)

MOST_WORDS = 1000
SCRIPTS = ["keras_digits.py"]
RUNS = {run.text.partition("#")[0].strip(): run for run in runs_of("README.md")}

Printed = Callable[[str], str]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Printed:
    """What a command of README prints, started as a reader would; each is run once."""
    directory = tmp_path_factory.mktemp("readme")
    prepare("README.md", directory)

    @cache
    def output(command: str) -> str:
        return follow(RUNS[command], directory, environment())

    return output


@pytest.mark.parametrize("command", RUNS)
def test_command(command: str, printed: Printed) -> None:
    assert printed(command)


def test_it_is_read_in_minutes() -> None:
    assert len(README.split()) <= MOST_WORDS


def test_its_code_is_the_examples_code() -> None:
    blocks = [block for block in read_blocks("README.md") if block.language == "python"]
    assert [block.title for block in blocks] == [f"{EXAMPLES}{name}" for name in SCRIPTS]
    assert [block.text for block in blocks] == [(ROOT / EXAMPLES / name).read_text() for name in SCRIPTS]


def test_its_commands_exist_and_ci_runs_none_that_contributors_are_not_told_of() -> None:
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    readme, contributing, ci = (
        set(re.findall(r"make ([a-z-]+)", text)) for text in (README, CONTRIBUTING, CI)
    )
    assert readme | contributing <= targets
    assert ci & targets <= contributing


def test_keras_example(printed: Printed) -> None:
    out = printed("python examples/keras_digits.py")
    accuracy = float(re.findall(r"accuracy: ([\d.]+)", out)[-1])
    assert accuracy > 0.9


def test_parameter_server_example(printed: Printed) -> None:
    out = printed("stratagem run --ps 2 --workers 3 --max-restarts 5 examples/jax_parameter_servers.py")
    found = re.findall(r"(\d+) updates, accuracy ([\d.]+)", out)
    assert len(found) == 3
    assert all(400 <= int(updates) <= 402 and float(accuracy) > 0.9 for updates, accuracy in found)


def test_demo_trains_the_same_with_one_worker_and_with_two_and_goes_on_after_losses(printed: Printed) -> None:
    out = printed("make demo")
    one, two, served = map(float, re.findall(r"accuracy on 359 test digits: ([\d.]+) %", out))
    assert one == two
    assert min(one, served) > 95
    assert out.count("kill -9") == out.count("failed with signal SIGKILL") == 2
    assert "goes on from the snapshot" in out
