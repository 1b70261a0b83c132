"""Runs a piece of Python in a process of its own, with an environment that says nothing about devices."""

import os
import subprocess
import sys
import textwrap

DEVICE_VARIABLES = {"PJRT_NPROC", "NPROC", "XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "JAX_PLATFORMS"}


def clean_environment(**variables: str) -> dict[str, str]:
    """This process's environment without what it says about devices, and with `variables`."""
    inherited = {name: value for name, value in os.environ.items() if name not in DEVICE_VARIABLES}
    return {**inherited, **variables}


def run(code: str, *arguments: str, timeout: float = 60, **variables: str) -> str:
    """What the code prints; its failure, or its deadline, fails the test."""
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *arguments],
        env=clean_environment(**variables),
        timeout=timeout,
        text=True,
        capture_output=True,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()
