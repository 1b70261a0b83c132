"""The Keras examples, started as their first lines say, with small settings."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*argv: str) -> str:
    environ = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    result = subprocess.run(
        [sys.executable, "-m", "stratagem", "run", *argv],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_multi_worker_tutorial(tmp_path: Path) -> None:
    out = run(
        "--workers", "2", "examples/keras_multi_worker.py", "--epochs", "6", "--backup_dir", str(tmp_path)
    )
    found = re.findall(r"\[worker:(\d)\] accuracy on 359 test digits: ([\d.]+)", out)
    assert sorted(worker for worker, _ in found) == ["0", "1"]
    assert len({accuracy for _, accuracy in found}) == 1
    assert float(found[0][1]) > 0.9
    assert not re.search(r"\[worker:1\].*Epoch", out)  # the chief alone shows progress


def test_recommender_on_parameter_servers() -> None:
    out = run("--ps", "2", "--workers", "2", "examples/keras_recommender.py", "--epochs", "4")
    (accuracy,) = re.findall(r"accuracy on ratings never seen: ([\d.]+)", out)
    assert float(accuracy) > 0.85


def test_mobilenet() -> None:
    out = run(
        *("--workers", "2", "examples/keras_mobilenet.py"),
        *("--steps", "2", "--size", "32", "--alpha", "0.35", "--batch_size", "8"),
    )
    told = re.findall(r"\[worker:\d\] loss ([\d.]+), accuracy ([\d.]+)", out)
    assert len(told) == 2
    assert told[0] == told[1]
