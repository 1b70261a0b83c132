"""What `stratagem run` gives each task."""

import json
import sys
from pathlib import Path

import pytest

from stratagem.errors import LaunchError
from stratagem.launch.plan import JobShape, command_of, task_environment, tf_config
from stratagem.launch.ports import ReservedPort
from stratagem.launch.task import TaskName

SHAPE = JobShape(("train",), workers=2, ps=1, evaluator=True)
ADDRESSES = {task: f"127.0.0.1:{2000 + number}" for number, task in enumerate(SHAPE.tasks)}


def test_tasks_in_order() -> None:
    assert [str(task) for task in SHAPE.tasks] == ["ps:0", "worker:0", "worker:1", "evaluator:0"]


def test_evaluator_is_outside_the_cluster() -> None:
    config = json.loads(tf_config(TaskName("evaluator", 0), ADDRESSES))
    assert config == {
        "cluster": {"ps": ["127.0.0.1:2000"], "worker": ["127.0.0.1:2001", "127.0.0.1:2002"]},
        "task": {"type": "evaluator", "index": 0},
    }


def test_environment_adds_and_keeps() -> None:
    env = task_environment(TaskName("worker", 1), 3, ADDRESSES, {"HOME": "/h", "TF_CONFIG": "old"}, "run-id")
    assert env["HOME"] == "/h"
    assert env["STRATAGEM_GENERATION"] == "3"
    assert env["STRATAGEM_RUN"] == "run-id"
    assert json.loads(env["TF_CONFIG"])["task"] == {"type": "worker", "index": 1}


@pytest.mark.parametrize(
    ("options", "message"), [({"workers": 0}, "at least 1 worker"), ({"ps": -1}, "0 or more")]
)
def test_impossible_shapes(options: dict[str, int], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        JobShape(("train",), **options)  # type: ignore[arg-type]


def test_commands(tmp_path: Path) -> None:
    script, program, text = tmp_path / "a.py", tmp_path / "b.sh", tmp_path / "c.txt"
    for path in (script, program, text):
        path.touch()
    program.chmod(0o755)
    assert command_of(str(script), ("--x",)) == (sys.executable, str(script), "--x")
    assert command_of(str(program), ()) == (str(program),)
    with pytest.raises(LaunchError, match=r"neither a \.py file nor executable"):
        command_of(str(text), ())
    with pytest.raises(LaunchError, match="there is no file"):
        command_of(str(tmp_path / "d.py"), ())
    with pytest.raises(LaunchError, match="is a directory"):
        command_of(str(tmp_path), ())


def test_a_reserved_port_refuses_until_its_task_listens_and_again_after_its_end() -> None:
    import socket

    port = ReservedPort()
    host, _, number = port.address.rpartition(":")
    for _ in range(2):
        task_socket = port.socket_for_task()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(number)), timeout=5)
        task_socket.listen()
        socket.create_connection((host, int(number)), timeout=5).close()
        task_socket.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(number)), timeout=5)
    with pytest.raises(OSError, match="in use"), socket.socket() as stranger:
        stranger.bind((host, int(number)))
    port.close()
