"""Real jobs of `stratagem run`: tasks are killed at random moments, jobs run side by side, and nothing is left."""

import json
import os
import signal
import subprocess
from pathlib import Path

from drills.counting_files import TASK
from drills.counting_task import is_even, write
from drills.nursery import ROOT, Nursery
from drills.parameter_servers import drills
from drills.processes import launcher, until
from process.parameters.conftest import JobMaker

ONE_EACH = ("--ps", "1", "--workers", "1")
FINDS_DRILLS = {"PYTHONPATH": str(ROOT)}


def test_random_kills_under_each_rule(nursery: Nursery) -> None:
    outcomes = drills(rounds=2, seed=41, kills=2, nursery=nursery)
    assert [outcome for outcome in outcomes if outcome.problem] == []


def test_two_jobs_at_once(nursery: Nursery, new_job: JobMaker, tmp_path: Path) -> None:
    """Each makes a directory for its cuts, and removes it when it has ended well."""
    job, temporary = new_job(0, 0), tmp_path / "temporary"
    temporary.mkdir()
    launched = []
    for name, rule in {"one": "sg.Async()", "other": "sg.Sync()"}.items():
        place = tmp_path / name
        place.mkdir()
        write(place / "target", "30")
        launched.append(job.launch(*ONE_EACH, TASK, rule, place, TMPDIR=str(temporary)))
    for each in launched:
        assert f"a snapshot of step 0 is in {temporary}/stratagem-snapshots-" in each.ends_well()
    until("all processes to be gone", nursery.is_idle, 10)
    assert list(temporary.iterdir()) == []
    for place in (tmp_path / "one", tmp_path / "other"):
        found = json.loads((place / "fetched-0").read_text())
        assert is_even(found)
        assert found["step"] == 30


def test_cuts_of_a_failed_job_stay_and_another_goes_on_from_them(nursery: Nursery, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    environ = {**FINDS_DRILLS, "TMPDIR": str(tmp_path), "STRATAGEM_LOG": "info"}
    arguments = (*ONE_EACH, TASK, "sg.Async()", place)

    def cuts() -> list[Path]:
        return sorted(tmp_path.glob("stratagem-snapshots-*/model-0/*/manifest.json"))

    with launcher(*arguments, stdout=subprocess.DEVNULL, environ=environ) as job:
        until("a cut after the first", lambda: len(cuts()) > 1, 90)
        (worker,) = set(job.find(str(TASK))) - {job.pid} - set(job.find("keeper.py"))
        os.kill(worker, signal.SIGKILL)
        code, _, err = job.finish(60)
    assert code == 1
    kept = cuts()[0].parents[2]
    assert f"to resume from them, start the job again with STRATAGEM_SNAPSHOT_DIR={kept}" in err
    reached = max(int(path.parent.name.removeprefix("step-")) for path in cuts())
    write(place / "target", str(reached + 5))
    environ["STRATAGEM_SNAPSHOT_DIR"] = str(kept)
    done = nursery.outcome("stratagem", "run", *arguments, environ=environ)
    assert done.returncode == 0, done.stderr
    assert f"model model-0 goes on from the snapshot of step {reached} in {kept}" in done.stderr
    assert cuts()  # the user's own directory stays
    found = json.loads((place / "fetched-0").read_text())
    assert is_even(found)
    assert found["step"] == reached + 5


def test_a_worker_that_is_killed_between_its_farewell_and_its_end_has_finished(
    nursery: Nursery, tmp_path: Path
) -> None:
    """All others have ended by the time that it is started again."""
    script = tmp_path / "script.py"
    script.write_text(f"""
import os, signal
from pathlib import Path
import numpy as np
import stratagem as sg
from drills import task_messages
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
    task_messages.wait_for(closed)
    os.kill(os.getpid(), signal.SIGKILL)
""")
    options = ("--ps", "1", "--workers", "2", "--max-restarts", "1")
    done = nursery.outcome("stratagem", "run", *options, script, environ=FINDS_DRILLS)
    assert done.returncode == 0, done.stderr
    assert "worker:1 failed with signal SIGKILL" in done.stderr
    assert "nothing left to do here: /job:worker/task:1 has finished in this job" in done.stderr
