"""What `stratagem run` gives each task."""

import json
import sys
from pathlib import Path

import pytest

from stratagem.devices import visible_gpus
from stratagem.errors import LaunchError
from stratagem.tools.launch.job_shape import SERVE, JobRun, JobShape, tf_config, user_command
from stratagem.tools.launch.tasks import ReservedPort, TaskName

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


def environment_of(shape: JobShape, task: TaskName, **inherited: str) -> dict[str, str]:
    return JobRun(shape, "run-id", "a secret", inherited, ADDRESSES).task_environment(task, 3)


def test_environment_adds_and_keeps() -> None:
    env = environment_of(SHAPE, TaskName("worker", 1), HOME="/h", TF_CONFIG="old")
    assert env["HOME"] == "/h"
    assert env["STRATAGEM_GENERATION"] == "3"
    assert env["STRATAGEM_RUN"] == "run-id"
    assert env["STRATAGEM_SECRET"] == "a secret"
    assert json.loads(env["TF_CONFIG"])["task"] == {"type": "worker", "index": 1}


def test_large_copies_go_past_the_caches_unless_the_user_has_said_otherwise() -> None:
    name, said = "GLIBC_TUNABLES", "glibc.cpu.x86_non_temporal_threshold"
    for task in SHAPE.tasks:
        assert environment_of(SHAPE, task)[name] == f"{said}=0x100000"
    task = TaskName("ps", 0)
    other = environment_of(SHAPE, task, GLIBC_TUNABLES="glibc.malloc.check=3")
    assert other[name] == f"glibc.malloc.check=3:{said}=0x100000"
    assert environment_of(SHAPE, task, GLIBC_TUNABLES=f"{said}=0x800000")[name] == f"{said}=0x800000"


def test_a_secret_of_the_user_is_kept() -> None:
    assert environment_of(SHAPE, TaskName("ps", 0), STRATAGEM_SECRET="mine")["STRATAGEM_SECRET"] == "mine"
    by_file = environment_of(SHAPE, TaskName("ps", 0), STRATAGEM_SECRET_FILE="mine")
    assert by_file["STRATAGEM_SECRET_FILE"] == "mine"
    assert "STRATAGEM_SECRET" not in by_file  # it would win


@pytest.mark.parametrize("chosen", [{"STRATAGEM_SECRET": "mine"}, {"STRATAGEM_SECRET_FILE": "mine"}])
def test_a_secret_of_the_user_is_noted_nowhere(chosen: dict[str, str]) -> None:
    made = JobRun(SHAPE, "run-id", "a secret", {}, ADDRESSES).running_job
    assert (made.command, made.target, made.secret) == ("train", "sg://127.0.0.1:2000", "a secret")
    assert len(made.addresses) == 3  # the evaluator serves nobody
    assert JobRun(SHAPE, "run-id", "a secret", chosen, ADDRESSES).running_job.secret is None


def test_who_runs_what() -> None:
    assert SHAPE.command_of(TaskName("ps", 0)) == SERVE
    assert SHAPE.command_of(TaskName("worker", 0)) == ("train",)
    single = JobShape(("train",), workers=1, ps=1, single_client=True)
    commands = {str(task): single.command_of(task) for task in single.tasks}
    assert commands == {"ps:0": SERVE, "worker:0": SERVE, "chief:0": ("train",)}


def test_devices_of_workers() -> None:
    virtual = JobShape(("train",), workers=2, ps=1, devices_per_worker=2)
    env = environment_of(virtual, TaskName("worker", 1))
    assert env["JAX_NUM_CPU_DEVICES"] == "2"
    assert int(env["PJRT_NPROC"]) >= 4
    assert environment_of(virtual, TaskName("ps", 0))["JAX_PLATFORMS"] == "cpu"
    real = JobShape(("train",), workers=2, devices_per_worker=2, gpus=("2", "3", "GPU-a", "7"))
    assert environment_of(real, TaskName("worker", 1))["CUDA_VISIBLE_DEVICES"] == "GPU-a,7"
    with pytest.raises(LaunchError, match="need 6 GPUs, and this machine has 4"):
        JobShape(("train",), workers=3, devices_per_worker=2, gpus=("0", "1", "2", "3"))


def test_gpus_are_counted_without_a_driver(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert visible_gpus({}, tmp_path) == ("0", "1")
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "1"}, tmp_path) == ("1",)
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == ()
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "-1"}, tmp_path) == ()
    assert visible_gpus({"JAX_PLATFORMS": "cpu"}, tmp_path) == ()
    assert visible_gpus({"JAX_PLATFORMS": "cuda,cpu"}, tmp_path) == ("0", "1")


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
    assert user_command(str(script), ("--x",)) == (sys.executable, str(script), "--x")
    assert user_command(str(program), ()) == (str(program),)
    with pytest.raises(LaunchError, match=r"neither a \.py file nor executable"):
        user_command(str(text), ())
    with pytest.raises(LaunchError, match="there is no file"):
        user_command(str(tmp_path / "d.py"), ())
    with pytest.raises(LaunchError, match="is a directory"):
        user_command(str(tmp_path), ())


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
