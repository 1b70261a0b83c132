"""The single client as users start it: by the launcher, with the example, with mistakes, with Ctrl-C."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from drills.processes import Marked, launcher, until
from process.conftest import ScriptWriter

ROOT = Path(__file__).parents[3]
PRELUDE = "import numpy as np, optax, stratagem as sg\n"


def test_the_example_learns() -> None:
    with launcher(
        "--ps", "1", "--workers", "2", "--single-client", "--allow-import", "coordinator",
        ROOT / "examples" / "coordinator.py",
    ) as job:  # fmt: skip
        status, out, err = job.finish(120)
        job.gone(5)
    assert status == 0, err
    found = re.search(r"loss ([\d.]+), then ([\d.]+)\n.*accuracy on 359 test digits: ([\d.]+)%", out)
    assert found, out
    assert float(found[2]) < float(found[1])
    assert float(found[3]) > 85


def test_in_graph_by_one_command(script: ScriptWriter) -> None:
    path = script("""
        strategy = sg.ParameterServerStrategy(update=sg.Sync(), replication="in-graph")
        state = strategy.init({"w": np.ones(2, np.float32)}, optax.sgd(0.5))
        step = strategy.train_step(lambda params, x: ((x @ params["w"]) ** 2).mean())
        for x in strategy.distribute([np.eye(2, dtype=np.float32)] * 4):
            state, metrics = step(state, x)
        print("w", strategy.fetch(state).params["w"], "steps", metrics["global_step"])
    """)
    with launcher("--ps", "1", "--workers", "2", "--single-client", path) as job:
        status, out, err = job.finish(120)
        job.gone(5)
    assert status == 0, err
    assert "w [0.0625 0.0625] steps 4" in out, out


def test_ctrl_c_while_no_worker_comes(script: ScriptWriter) -> None:
    path = script("""
        import jax.numpy as jnp
        with sg.Server({"local": ["127.0.0.1:0"], "worker": ["127.0.0.1:9"]}, "local", 0) as server:
            with sg.ClusterCoordinator(sg.Session(server.target), queue_size=2) as coordinator:
                coordinator.schedule(jnp.sin, (0.0,))
                print("waiting", flush=True)
                coordinator.join()
    """)
    with Marked([sys.executable, str(path)], environ={"TF_CONFIG": ""}) as client:
        assert client.process.stdout is not None
        assert client.process.stdout.readline() == b"waiting\n"
        os.kill(client.pid, signal.SIGINT)
        status, _, err = client.finish(20)
    assert status in (1, 130, -signal.SIGINT)
    assert "KeyboardInterrupt" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--allow-import", "x", __file__], "add --single-client"),
        (
            ["serve", "--job_name", "worker", "--worker_hosts", "127.0.0.1:1", "--task_index", "0",
             "--allow-import", "no_such_module"],
            "there is no module 'no_such_module'",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_told_at_once(arguments: list[str], message: str) -> None:
    with Marked([sys.executable, "-m", "stratagem", *arguments]) as command:
        status, _, err = command.finish()
    assert status == 2
    assert message in err


def test_a_job_whose_client_fails_ends(script: ScriptWriter) -> None:
    path = script("""
        import jax.numpy as jnp
        with sg.ClusterCoordinator() as coordinator:
            batches = iter(coordinator.create_per_worker_dataset("os:getcwd"))
            coordinator.schedule(jnp.sum, (batches,))
    """)
    with launcher("--workers", "1", "--single-client", path) as job:
        until("the job to end", lambda: job.process.poll() is not None, 60)
        status, _, err = job.finish()
        job.gone(5)
    assert status == 1
    assert "--allow-import os" in err
