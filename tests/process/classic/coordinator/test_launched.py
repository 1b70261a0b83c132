"""The single client as users start it: by the launcher, with the example, with mistakes, with Ctrl-C."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from drills.processes import Marked, launcher
from process.conftest import ScriptWriter

ROOT = Path(__file__).parents[4]
PRELUDE = "import stratagem as sg\n"


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
