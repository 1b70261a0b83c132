"""`stratagem bench` with real processes: every contender trains, and whatever ends it, nothing is left."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from drills.nursery import Nursery
from drills.processes import Marked, until
from stratagem.tools.bench.contenders import CHOICES, line_up

GONE = 10.0
"""Seconds: here it only has to happen."""
SMALL = ("--layers", "16,8,4")


def bench(*arguments: str | Path, directory: Path) -> Marked:
    """`stratagem bench` of a small model, with a directory of its own for what is temporary."""
    argv = [sys.executable, "-m", "stratagem", "bench", *SMALL, *map(str, arguments)]
    # How well XLA's programs do is not asked here, and it takes less time to make worse ones.
    return Marked(argv, environ={"TMPDIR": str(directory), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"})


@pytest.mark.timeout(300)
def test_every_contender_trains_beside_a_slow_worker(tmp_path: Path, nursery: Nursery) -> None:
    workers = min(2, len(os.sched_getaffinity(0)))
    page, figures, temporary = tmp_path / "curves.html", tmp_path / "figures.json", tmp_path / "temporary"
    temporary.mkdir()
    argv = ["stratagem", "bench", *SMALL, "--workers", str(workers), "--devices", "2", "--seconds", "0.2"]
    argv += ["--slow-worker", "3", "--plot", str(page), "--json", str(figures)]
    done = nursery.command(tmp_path, argv, {**os.environ, "TMPDIR": str(temporary)}, 240)
    until("all processes to be gone", nursery.is_idle, GONE)
    out = done.stdout
    assert done.returncode == 0, done.stderr
    contenders = line_up(CHOICES, [workers], [2])
    said = json.loads(figures.read_text())
    assert [each["name"] for each in said["contenders"]] == [each.name for each in contenders]
    for contender, each in zip(contenders, said["contenders"], strict=True):
        assert contender.name in out
        assert each["examples_per_second"] > 0
        assert each["loss"] > 0
        assert len(each["rounds"][0]["paces"]) == contender.workers
        assert (each["staleness"] is None) == (contender.kind.servers == 0)
    assert out.splitlines()[-1].startswith(("Use sg.", "Among several", "No advice"))
    assert "one worker 3 times slower" in page.read_text()
    assert list(temporary.iterdir()) == []


def test_a_contender_that_takes_too_long_is_ended_and_named(tmp_path: Path) -> None:
    options = ("--workers", "1", "--strategies", "async", "--deadline", "0.3")
    with bench(*options, directory=tmp_path) as job:
        code, out, err = job.finish()
        job.gone(GONE)
    assert code == 1
    for name in ("one device", "servers, async, 1 worker"):
        assert f"stratagem: {name} failed: it did not end within 0.3 s" in err
    assert "No advice: one device, which all others are compared with, did not finish." in out
    assert list(tmp_path.iterdir()) == []


def test_a_contender_that_fails_is_named_with_the_cause(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "optax.py").write_text("raise ValueError('the cause')")
    argv = [sys.executable, "-m", "stratagem", "bench", "--workers", "1", "--strategies", "multi-worker"]
    with Marked(argv, environ={"PYTHONPATH": str(broken), "TMPDIR": str(tmp_path)}) as job:
        code, out, err = job.finish()
    assert code == 1
    assert out.count("failed") == 2
    for name in ("one device", "multi-worker mirrored, 1 worker"):
        told = err[err.index(f"stratagem: {name} failed: it ended with exit code 1") :]
        assert "stratagem: worker:0 failed, with exit code 1:" in told
        assert "ValueError: the cause" in told
    assert list(tmp_path.iterdir()) == [broken]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_nothing_is_left_when_it_is_ended(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with bench("--workers", "1", "--seconds", "600", directory=tmp_path) as job:
        until("a contender to run", lambda: job.find("bench/worker.py"))
        os.kill(job.pid, number)
        assert job.finish()[0] == code
        job.gone(GONE)
    if number != signal.SIGKILL:
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workers", "1,4096"], "--workers 1,4096: 4096 is too many, since this machine has"),
        (["--workers", "two"], "'two' is not a whole number"),
        (["--devices", "2,1"], "in rising order"),
        (["--strategies", "quick"], "there is no 'quick'"),
        (["--layers", "784"], "at least 2 classes"),
        (["--seconds", "0"], "Invalid value for '--seconds'"),
        (["--slow-worker", "0.5"], "Invalid value for '--slow-worker'"),
        (["--plot", "curves.pdf"], "ends in .png or .html"),
        (["--json", "nowhere/figures.json"], "there is no directory"),
    ],
)
def test_mistakes_are_answered_with_what_to_do(tmp_path: Path, arguments: list[str], said: str) -> None:
    with bench(*arguments, directory=tmp_path) as job:
        code, _, err = job.finish()
    assert code == 2
    assert said in err
    assert "Traceback" not in err
