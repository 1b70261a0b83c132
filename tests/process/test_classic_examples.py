"""The classic scripts: towers in one process, and a cluster with a parameter server; each goes on from its checkpoint."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from drills.nursery import ROOT, Nursery


def run(*argv: str) -> str:
    """What a fresh process prints."""
    result = subprocess.run(
        [sys.executable, *argv], cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=240
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Traceback" not in result.stderr, result.stderr
    return result.stdout


def test_towers_reach_their_accuracy_and_go_on(nursery: Nursery, tmp_path: Path) -> None:
    script = ("examples/mnist_towers.py", "--train_dir", str(tmp_path))
    first = run(*script, "--steps", "300")
    assert float(re.findall(r"step 300, accuracy ([\d.]+)", first)[0]) > 0.93
    assert (tmp_path / "checkpoints").is_dir()
    assert list(tmp_path.glob("events.out.tfevents.*"))
    second = nursery.said(*script, "--steps", "320")
    assert "After 300 " not in second  # not again what was done
    assert re.search(r"step 320, accuracy 0\.9", second)


@pytest.mark.parametrize("sync", [(), ("--sync",)], ids=["async", "sync"])
def test_cluster_reaches_its_accuracy(nursery: Nursery, tmp_path: Path, sync: tuple[str, ...]) -> None:
    cluster = ("stratagem", "run", "--ps", "1", "--workers", "3", "examples/mnist_cluster.py")
    job = (*cluster, "--train_dir", str(tmp_path), "--steps", "400", *sync)
    out = nursery.said(*job) if sync else run("-m", *job)
    told = re.findall(r"\[worker:\d\] (\d+) global steps, accuracy ([\d.]+)", out)
    assert len(told) == 3
    assert all(400 <= int(steps) <= 402 and float(accuracy) > 0.93 for steps, accuracy in told)
    assert list((tmp_path / "checkpoints").iterdir())
    assert {int(index) for index in re.findall(r"\[worker:0\] +/job:worker/task:(\d): ", out)} == {0, 1, 2}
