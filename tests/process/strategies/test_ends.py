"""How workers end: without a word if all went well, and missed by the others if it did not."""

import re

from drills.nursery import Nursery
from process.conftest import ScriptWriter

RUN = ("stratagem", "run", "--workers", "2")
PRELUDE = """
import os, sys, time
from pathlib import Path
import stratagem as sg
import jax.numpy as jnp, numpy as np, optax

strategy = sg.MultiWorkerMirroredStrategy(timeout=10)
index = sg.resolve_cluster().task_index
state = strategy.init({"w": np.float32(0)}, optax.sgd(0.1))
step = strategy.train_step(lambda params, batch: jnp.mean((batch - params["w"]) ** 2))

def until(ask):
    deadline = time.monotonic() + 30
    while not ask():
        assert time.monotonic() < deadline
        time.sleep(0.01)
"""


def test_who_ends_well_has_finished_and_is_not_missed(nursery: Nursery, script: ScriptWriter) -> None:
    path = script("""
        for batch in strategy.distribute([np.ones(4, np.float32)] * 5):
            state, metrics = step(state, batch)
        first = Path(__file__).with_name("first")
        if index == 0:
            first.with_suffix(".new").write_text(str(os.getpid()))
            first.with_suffix(".new").rename(first)
        else:
            until(first.exists)
            until(lambda: not Path("/proc", first.read_text()).exists())
            strategy._workers.group.check(1)  # raises if the first is missed
            print("alone, and not alarmed")
    """)
    done = nursery.outcome(*RUN, path)
    assert done.returncode == 0, done.stderr
    assert "alone, and not alarmed" in done.stdout
    assert "WorkerLost" not in done.stderr


def test_who_fails_is_missed_by_name(nursery: Nursery, script: ScriptWriter) -> None:
    path = script("""
        try:
            for number, batch in enumerate(strategy.distribute([np.ones(4, np.float32)] * 1000)):
                if number == 5 and index == 1:
                    raise KeyError("of worker 1")
                state, metrics = step(state, batch)
        except sg.WorkerLost as error:
            print("caught", error.task, error, flush=True)
            os._exit(7)  # the launcher is told by worker 1 what was first; this only shows that we got here
    """)
    # Restarting a task alone leaves the other one the time to notice.
    done = nursery.outcome(*RUN, "--restart", "task", "--max-restarts", "1", path)
    assert "KeyError: 'of worker 1'" in done.stderr + done.stdout
    assert re.search("caught /job:worker/task:1 /job:worker/task:1 is lost", done.stdout), done.stderr
