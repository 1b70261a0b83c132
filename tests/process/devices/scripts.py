"""Runs a piece of Python in a process of its own, with an environment that says nothing about devices."""

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from drills.nursery import Nursery
from drills.quick_compiling import QUICKLY

DEVICE_VARIABLES = {"PJRT_NPROC", "NPROC", "XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "JAX_PLATFORMS"}


def clean_environment(**variables: str) -> dict[str, str]:
    """This process's environment without what it says about devices, and with `variables`."""
    inherited = {name: value for name, value in os.environ.items() if name not in DEVICE_VARIABLES}
    return {**inherited, **variables}


def run(
    code: str, *arguments: str, timeout: float = 60, nursery: Nursery | None = None, **variables: str
) -> str:
    """What the code prints; its failure, or its deadline, fails the test.

    Args:
        code: What to run, with every warning an error.
        arguments: Its arguments.
        timeout: The deadline.
        nursery: Forks the process; without it the process is fresh, which takes a second of processor time.
        variables: What its environment says besides.
    """
    if nursery is None:
        finished = subprocess.run(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *arguments],
            env=clean_environment(**variables),
            timeout=timeout,
            text=True,
            capture_output=True,
        )
    else:
        with tempfile.TemporaryDirectory() as place:
            script = Path(place) / "script.py"
            script.write_text(f"import warnings; warnings.simplefilter('error')\n{textwrap.dedent(code)}")
            environ = clean_environment(**{**QUICKLY, **variables})
            finished = nursery.command(Path.cwd(), [str(script), *arguments], environ, timeout)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()
