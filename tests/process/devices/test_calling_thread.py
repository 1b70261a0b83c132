"""Processes that wait for each result compute in the thread that waits; others as JAX would have it."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
from stratagem.devices import compute_in_calling_thread
compute_in_calling_thread()
import jax
import jax.numpy as jnp
print(jax._src.xla_bridge._CPU_ENABLE_ASYNC_DISPATCH.value, float(jnp.arange(4).sum()))
"""


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, "False 6.0"),
        ({"JAX_NUM_CPU_DEVICES": "2", "PJRT_NPROC": "16"}, "True 6.0"),
        ({"JAX_CPU_ENABLE_ASYNC_DISPATCH": "1"}, "True 6.0"),
    ],
    ids=["one device", "two devices", "the user's wish"],
)
def test_who_computes(environ: dict[str, str], expected: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == expected, done.stderr
