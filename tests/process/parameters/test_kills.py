"""Real jobs of `stratagem run`: tasks are killed at random moments, jobs run side by side, and nothing is left."""

import json
import os
import signal
import subprocess
from pathlib import Path

from drills.counted import TASK
from drills.counting_task import is_even, write
from drills.nursery import ROOT
from drills.parameter_servers import drills
from drills.processes import launcher, until


def test_random_kills_under_each_rule() -> None:
    assert [outcome for outcome in drills(rounds=2, seed=41, kills=2) if outcome.problem] == []


def test_two_jobs_at_once(tmp_path: Path) -> None:
    """Each makes a directory for its cuts, and removes it when it has ended well."""
    jobs = []
    for name, rule in {"one": "sg.Async()", "other": "sg.Sync()"}.items():
        place = tmp_path / name
        place.mkdir()
        write(place / "target", "30")
        jobs.append(
            launcher(
                "--ps",
                "1",
                "--workers",
                "1",
                TASK,
                rule,
                place,
                stdout=subprocess.DEVNULL,
                environ={"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), "STRATAGEM_LOG": "info"},
            )
        )
    with jobs[0], jobs[1]:
        for job in jobs:
            code, _, err = job.finish(90)
            assert code == 0, err
            assert f"a cut of step 0 is in {tmp_path}/stratagem-snapshots-" in err
            job.gone(10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other"]
    for place in (tmp_path / "one", tmp_path / "other"):
        found = json.loads((place / "fetched-0").read_text())
        assert is_even(found)
        assert found["step"] == 30


def test_cuts_of_a_failed_job_stay_and_another_goes_on_from_them(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    environ = {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), "STRATAGEM_LOG": "info"}
    arguments = ("--ps", "1", "--workers", "1", TASK, "sg.Async()", place)

    def cuts() -> list[Path]:
        return sorted(tmp_path.glob("stratagem-snapshots-*/model-0/*/manifest.json"))

    with launcher(*arguments, stdout=subprocess.DEVNULL, environ=environ) as job:
        until("a cut after the first", lambda: len(cuts()) > 1, 90)
        (worker,) = set(job.find(str(TASK))) - {job.pid} - set(job.find("keeper.py"))
        os.kill(worker, signal.SIGKILL)
        code, _, err = job.finish(60)
    assert code == 1
    kept = cuts()[0].parents[2]
    assert f"to go on from them, start the job again with STRATAGEM_SNAPSHOT_DIR={kept}" in err
    reached = max(int(path.parent.name.removeprefix("step-")) for path in cuts())
    write(place / "target", str(reached + 5))
    environ["STRATAGEM_SNAPSHOT_DIR"] = str(kept)
    with launcher(*arguments, stdout=subprocess.DEVNULL, environ=environ) as job:
        code, _, err = job.finish(90)
    assert code == 0, err
    assert f"model model-0 goes on from the cut of step {reached} in {kept}" in err
    assert cuts()  # the user's own directory stays
    found = json.loads((place / "fetched-0").read_text())
    assert is_even(found)
    assert found["step"] == reached + 5


def test_a_worker_that_is_killed_between_its_farewell_and_its_end_has_finished(tmp_path: Path) -> None:
    """All others have ended by the time that it is started again."""
    script = tmp_path / "script.py"
    script.write_text(f"""
import os, signal
from pathlib import Path
import numpy as np
import stratagem as sg
from drills import task_words
from drills.counting_task import BATCH, initial, loss_fn, optimizer

index = sg.resolve_cluster().task_index
strategy = sg.ParameterServerStrategy(rejoin_timeout=5)
state, step = strategy.init(initial(), optimizer()), strategy.train_step(loss_fn)
for batch in strategy.distribute_from_function(lambda _: [BATCH] * 3):
    state, _ = step(state, batch)
strategy.close()
closed = Path({str(tmp_path)!r}) / "closed"
if index == 0:
    closed.touch()
else:
    task_words.wait_for(closed)
    os.kill(os.getpid(), signal.SIGKILL)
""")
    options = ("--ps", "1", "--workers", "2", "--max-restarts", "1")
    with launcher(*options, script, environ={"PYTHONPATH": str(ROOT)}) as job:
        code, _, err = job.finish(90)
        job.gone(10)
    assert code == 0, err
    assert "worker:1 failed with signal SIGKILL" in err
    assert "nothing left to do here: /job:worker/task:1 has finished in this job" in err
