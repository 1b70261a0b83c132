"""Runs the code blocks of a page, in a directory of its own."""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from documents import EXAMPLES, ROOT, Command, alike, differences, file_of, read_blocks, runs_of, words_of
from drills.nursery import Nursery

SECONDS = 240
BACKEND = {"KERAS_BACKEND": "jax"}
_OF_MAKE = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
"""What make tells commands that are make themselves: a command of a page is to be as if typed."""
_BINARIES = Path(sys.executable).parent


def environment() -> dict[str, str]:
    """Return the environment of a page's commands, as the tests have set it by now.

    To be called by the thread that runs the tests: pytest writes to its environment which test it runs, and no other thread
    can read all of it meanwhile.
    """
    return {
        **{name: value for name, value in os.environ.items() if name not in _OF_MAKE},
        "PATH": f"{_BINARIES}{os.pathsep}{os.environ['PATH']}",
        **BACKEND,
    }


def prepare(page: str, directory: Path) -> None:
    """Write the files that a page has, and link those that it may use, into an empty directory."""
    (directory / "examples").symlink_to(ROOT / "examples")
    for block in read_blocks(page):
        path = directory / file_of(block)
        # Those of the repository are there, and the same: a pure test sees to it.
        if block.language == "python" and not file_of(block).startswith(EXAMPLES):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)


@dataclass(frozen=True)
class Forks:
    """Processes that have imported what scripts need, and fork them.

    Attributes:
        plain: For scripts without Keras.
        keras: For those with it: strategies do more where Keras is.
    """

    plain: Nursery
    keras: Nursery

    def run(
        self, command: Command, directory: Path, environ: Mapping[str, str]
    ) -> "subprocess.CompletedProcess[str] | None":
        """Run a command of a page, unless it is one that only a shell understands, or make."""
        words = words_of(command.text)
        if words[0] == "python":
            del words[0]
        elif words[0] != "stratagem":
            return None
        scripts = [directory / word for word in words if word.endswith(".py")]
        has_keras = any("import keras" in script.read_text() for script in scripts)
        nursery = self.keras if has_keras else self.plain
        return nursery.command(directory, words, environ, SECONDS)


def follow(command: Command, directory: Path, environ: Mapping[str, str], forks: Forks | None = None) -> str:
    """Run a command of a page, and return what it printed.

    Args:
        command: The command.
        directory: The page's own.
        environ: Its `environment`.
        forks: Who forks it; by default it is started, as a reader would.

    Raises:
        AssertionError: It did not do what the page promises.
    """
    done = (forks and forks.run(command, directory, environ)) or subprocess.run(
        ["bash", "-c", _with_these_binaries(command.text)],
        cwd=directory,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    for each in alike(command):
        what, said = f"{each.block.place}: `{each.text}`", done.stdout + done.stderr
        assert done.returncode == each.exit_code, f"{what}: exit code {done.returncode}\n{said}"
        wrong = "\n".join(differences(each.output, done.stdout, done.stderr))
        assert not wrong, f"{what} did not print\n{wrong}\nbut\n{said}"
    return done.stdout + done.stderr


def run_page(page: str, directory: Path, environ: Mapping[str, str], forks: Forks | None = None) -> int:
    """Run all commands of a page that are not also in README, one after the other, and return their number."""
    prepare(page, directory)
    own = [command for command in runs_of(page) if alike(command)[0].block.page == page]
    return len([follow(command, directory, environ, forks) for command in own])


def _with_these_binaries(command: str) -> str:
    """Make is to use what the tests are run with, and not to make it first."""
    if not command.startswith("make "):
        return command
    binaries = os.path.relpath(_BINARIES, ROOT)  # in a recipe, a space in it would end the word
    return f"make --silent --directory={shlex.quote(str(ROOT))} --old-file=.venv/.ready BIN={binaries} {command[5:]}"
