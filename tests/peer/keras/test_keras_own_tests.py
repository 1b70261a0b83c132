"""Keras's own tests, which its package ships, in the scopes of strategies: what passes without one passes there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = ["keras.src.trainers", "keras.src.callbacks", "keras.src.saving"]
SECONDS = 3000.0


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("scope", ["OneDevice", "Mirrored", "CentralStorage"])
def test_what_passes_without_a_strategy_passes_in_its_scope(scope: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=short", "-p", "no:cacheprovider"]
    command += ["-c", os.devnull, "--rootdir", str(tmp_path), "--timeout", "300"]
    command += ["--numprocesses", "2", "--dist", "loadfile", "-p", "keras_in_scope", "--scope", scope]
    quickly = {"XLA_FLAGS": "--xla_backend_optimization_level=0", "TF_CPP_MIN_LOG_LEVEL": "3"}
    ended = subprocess.run(
        [*command, "--pyargs", *PACKAGES],
        cwd=tmp_path,
        env={**os.environ, **quickly, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert ended.returncode == 0, ended.stdout[-20000:] + ended.stderr[-5000:]
    (passed,) = re.findall(r"(\d+) passed", ended.stdout)
    assert int(passed) > 500, "the package of Keras has brought few of its tests"
