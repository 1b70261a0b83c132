"""The Keras examples, run as their first lines say, with small settings; one of them in fresh processes."""

import os
import re
import subprocess
import sys
from pathlib import Path

from drills.nursery import ROOT, Nursery


def test_multi_worker_tutorial(tmp_path: Path) -> None:
    """Where nobody has chosen what Keras computes with."""
    options = ("--epochs", "6", "--backup_dir", str(tmp_path))
    result = subprocess.run(
        [
            *(sys.executable, "-m", "stratagem", "run"),
            "--workers",
            "2",
            "examples/keras_multi_worker.py",
            *options,
        ],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    out = result.stdout
    found = re.findall(r"\[worker:(\d)\] accuracy on 359 test digits: ([\d.]+)", out)
    assert sorted(worker for worker, _ in found) == ["0", "1"]
    assert len({accuracy for _, accuracy in found}) == 1
    assert float(found[0][1]) > 0.9
    assert not re.search(r"\[worker:1\].*Epoch", out)  # the chief alone shows progress


def test_recommender_on_parameter_servers(keras_nursery: Nursery) -> None:
    job = ("stratagem", "run", "--ps", "2", "--workers", "2", "examples/keras_recommender.py")
    out = keras_nursery.said(*job, "--epochs", "4", seconds=240)
    (accuracy,) = re.findall(r"accuracy on ratings never seen: ([\d.]+)", out)
    assert float(accuracy) > 0.85


def test_mobilenet(keras_nursery: Nursery) -> None:
    out = keras_nursery.said(
        *("stratagem", "run", "--workers", "2", "examples/keras_mobilenet.py"),
        *("--steps", "2", "--size", "32", "--alpha", "0.35", "--batch_size", "8"),
        seconds=240,
    )
    told = re.findall(r"\[worker:\d\] loss ([\d.]+), accuracy ([\d.]+)", out)
    assert len(told) == 2
    assert told[0] == told[1]
