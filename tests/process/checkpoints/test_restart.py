"""A job that is killed, or asked to end, and goes on from its checkpoints as though nothing had happened."""

import os
import signal
from pathlib import Path

import numpy as np

from drills.nursery import Job, Nursery
from drills.processes import until
from process.conftest import ScriptWriter
from process.parameters.conftest import JobMaker
from stratagem import Checkpointer

PRELUDE = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
import stratagem as sg
import jax.numpy as jnp, optax

place, last = Path(sys.argv[1]), int(sys.argv[2])
index = sg.resolve_cluster().task_index
generation = int(os.environ.get("STRATAGEM_GENERATION", 0))
strategy = sg.MultiWorkerMirroredStrategy(communication="shm", timeout=30)
random = np.random.default_rng(7)
batches = [random.standard_normal((8, 4)).astype(np.float32) for _ in range(last)]

def loss_fn(params, batch):
    return jnp.mean((batch @ params["w"] - 1) ** 2)

state = strategy.init({"w": np.zeros((4, 2), np.float32)}, optax.adam(0.05), ema_decay=0.9)
step = strategy.train_step(loss_fn)
checkpoints = sg.Checkpointer(place / "checkpoints")
state = checkpoints.restore(like=state) or state
began = int(state.step)
print("begins at", began, flush=True)

def finish():
    fetched = strategy.fetch(state)
    if strategy.is_chief:
        np.savez(place / "end.npz", w=fetched.params["w"], ema=fetched.ema["w"], step=fetched.step, began=began)
"""
TRAINING = """
for batch in strategy.distribute(batches[began:]):
    if "killed" in sys.argv and generation == 0 and index == 1 and int(state.step) == 13:
        deadline = time.monotonic() + 60
        while checkpoints.latest() != 10:  # which the chief writes at its leisure
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    state, _ = step(state, batch)
    if int(state.step) % 5 == 0:
        checkpoints.save(state)
finish()
"""
PREEMPTED = """
with checkpoints.preemption() as preempted:
    for batch in strategy.distribute(batches[began:]):
        state, _ = step(state, batch)
        if "slowly" in sys.argv:
            time.sleep(0.01)
        if int(state.step) % 10 == 3:
            print("under way at", int(state.step), flush=True)
        if preempted:
            checkpoints.save(state)
            break
finish()
"""

SERVED = PREEMPTED.replace("if int(state.step) % 10 == 3:", "if int(state.step) > 20:")


def ended(place: Path) -> dict[str, np.ndarray]:
    with np.load(place / "end.npz") as stored:
        return dict(stored)


def run_quietly(job: Job, path: Path, *arguments: object) -> list[str]:
    """The same on two workers that nobody disturbs; what each of them said."""
    workers = [job.start("worker", index, path, *arguments) for index in range(2)]
    return [worker.ends_well() for worker in workers]


def asked_to_end(nursery: Nursery, job: Job, *arguments: object) -> str:
    """Start a training by `stratagem run`, and ask the launcher to end when it is under way; what all have said."""
    launched = job.launch("--grace", "20", *arguments)
    launched.says("[worker:0] under way")
    os.kill(launched.pid, signal.SIGTERM)
    assert launched.ends() == 143, launched.text
    until("all processes to be gone", nursery.is_idle, 10)
    return launched.text


def test_a_killed_worker_costs_only_the_steps_since_the_last_checkpoint(
    new_job: JobMaker, script: ScriptWriter, tmp_path: Path
) -> None:
    path = script(TRAINING)
    quiet, killed = tmp_path / "quiet", tmp_path / "killed"
    for place in (quiet, killed):
        place.mkdir()
    options = ["--workers", "2", "--max-restarts", "1"]
    launched = new_job(0, 0).launch(*options, path, killed, "22", "killed")
    for said in run_quietly(new_job(0, 2), path, quiet, "22"):
        assert "begins at 0" in said
    out = launched.ends_well(120)
    assert out.count("begins at 0") == out.count("begins at 10") == 2, out
    expected, found = ended(quiet), ended(killed)
    assert expected.pop("began") == 0
    assert found.pop("began") == 10
    assert expected["step"] == 22
    for key in expected:
        np.testing.assert_array_equal(found[key], expected[key], err_msg=key)
    for place in (quiet, killed):
        assert Checkpointer(place / "checkpoints").steps() == [5, 10, 15, 20]


def test_who_is_asked_to_end_saves_first(
    nursery: Nursery, new_job: JobMaker, script: ScriptWriter, tmp_path: Path
) -> None:
    path = script(PREEMPTED)
    checkpoints = Checkpointer(tmp_path / "checkpoints")
    said = asked_to_end(nursery, new_job(0, 0), "--workers", "2", path, tmp_path, "100000", "slowly")
    assert "Traceback" not in said
    saved = checkpoints.latest()
    assert saved is not None and saved >= 3, "at the step that it had reached"
    assert not (tmp_path / "end.npz").exists(), "it went on to what comes after the training"
    for said in run_quietly(new_job(0, 2), path, tmp_path, saved + 2):
        assert f"begins at {saved}\n" in said
    assert ended(tmp_path)["step"] == saved + 2


def test_parameter_servers_outlive_those_who_save(
    nursery: Nursery, new_job: JobMaker, script: ScriptWriter, tmp_path: Path
) -> None:
    served = script(SERVED)
    source = served.read_text().replace(
        'sg.MultiWorkerMirroredStrategy(communication="shm", timeout=30)', "sg.ParameterServerStrategy()"
    )
    served.write_text(source)
    options = ("--ps", "2", "--workers", "2")
    asked_to_end(nursery, new_job(0, 0), *options, served, tmp_path, "100000", "slowly")
    saved = Checkpointer(tmp_path / "checkpoints").latest()
    assert saved is not None and saved > 20, "at the step that it had reached"


def test_when_a_worker_is_asked_to_end_the_chief_saves_and_all_end(
    new_job: JobMaker, script: ScriptWriter, tmp_path: Path
) -> None:
    path = script(PREEMPTED)
    job = new_job(0, 2)
    chief, worker = (job.start("worker", index, path, tmp_path, 100000, "slowly") for index in range(2))
    worker.says("under way at")
    os.kill(worker.pid, signal.SIGTERM)
    assert (chief.ends(), worker.ends()) == (143, 143), chief.text + worker.text
    assert "Traceback" not in chief.text + worker.text
    saved = Checkpointer(tmp_path / "checkpoints").latest()
    assert saved is not None and saved >= 3, "at the step that they had reached"


def test_a_worker_in_step_by_servers_has_the_chief_save_and_does_not_wait_for_it_any_more(
    new_job: JobMaker, script: ScriptWriter, tmp_path: Path
) -> None:
    served = script(PREEMPTED)
    source = served.read_text().replace(
        'sg.MultiWorkerMirroredStrategy(communication="shm", timeout=30)',
        "sg.ParameterServerStrategy(update=sg.Sync())",
    )
    served.write_text(source)
    job = new_job(2, 2)
    for index in range(2):
        job.serve(index)
    chief, worker = (job.start("worker", index, served, tmp_path, 100000, "slowly") for index in range(2))
    worker.says("under way at")
    os.kill(worker.pid, signal.SIGTERM)
    assert (chief.ends(), worker.ends()) == (143, 143), chief.text + worker.text
    saved = Checkpointer(tmp_path / "checkpoints").latest()
    assert saved is not None and saved >= 3, "at the step that they had reached"
