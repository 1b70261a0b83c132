"""Runs the code blocks of a page, in a directory of its own."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

from documents import EXAMPLES, ROOT, Command, differences, file_of, read_blocks, runs_of

SECONDS = 240
_OF_MAKE = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
"""What make tells commands that are make themselves: a command of a page is to be as if typed."""


def prepare(page: str, directory: Path) -> None:
    """Write the files that a page has, and link those that it may use, into an empty directory."""
    (directory / "examples").symlink_to(ROOT / "examples")
    for block in read_blocks(page):
        path = directory / file_of(block)
        # Those of the repository are there, and the same: a pure test sees to it.
        if block.language == "python" and not file_of(block).startswith(EXAMPLES):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)


def follow(command: Command, directory: Path) -> str:
    """Run a command of a page, and give what it printed.

    Args:
        command: The command.
        directory: The page's own.

    Raises:
        AssertionError: It did not do what the page promises.
    """
    done = subprocess.run(
        ["bash", "-c", _with_these_binaries(command.text)],
        cwd=directory,
        env={
            **{name: value for name, value in os.environ.items() if name not in _OF_MAKE},
            "PATH": f"{_binaries()}{os.pathsep}{os.environ['PATH']}",
            "KERAS_BACKEND": "jax",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    what, said = f"{command.block.place}: `{command.text}`", done.stdout + done.stderr
    assert done.returncode == command.exit_code, f"{what}: exit code {done.returncode}\n{said}"
    wrong = "\n".join(differences(command.output, done.stdout, done.stderr))
    assert not wrong, f"{what} did not print\n{wrong}\nbut\n{said}"
    return said


def run_page(page: str, directory: Path) -> int:
    """Run all that a page has to run, one after the other; how much that was."""
    prepare(page, directory)
    return len([follow(command, directory) for command in runs_of(page)])


def _binaries() -> Path:
    return Path(sys.executable).parent


def _with_these_binaries(command: str) -> str:
    """Make is to use what the tests are run with, and not to make it first."""
    if not command.startswith("make "):
        return command
    binaries = os.path.relpath(_binaries(), ROOT)  # in a recipe, a space in it would end the word
    return f"make --silent --directory={shlex.quote(str(ROOT))} --old-file=.venv/.ready BIN={binaries} {command[5:]}"
