"""What `stratagem run --single-client --allow-import` gives each task."""

import pytest

from stratagem.errors import LaunchError
from stratagem.tools.launch.job_shape import SERVE, JobRun, JobShape
from stratagem.tools.launch.tasks import TaskName

SHAPE = JobShape(
    ("train",), ps=1, single_client=True, allowed_imports=("data", "more.data"), import_directory="/scripts"
)


def test_workers_alone_may_import() -> None:
    allowed = ("--allow-import", "data", "--allow-import", "more.data")
    assert SHAPE.command_of(TaskName("worker", 0)) == (*SERVE, *allowed)
    assert SHAPE.command_of(TaskName("ps", 0)) == SERVE
    assert SHAPE.command_of(TaskName("chief", 0)) == ("train",)


@pytest.mark.parametrize(
    ("inherited", "expected"), [({}, "/scripts"), ({"PYTHONPATH": "/a:/b"}, "/a:/b:/scripts")]
)
def test_workers_look_beside_the_script(inherited: dict[str, str], expected: str) -> None:
    run = JobRun(SHAPE, "run-id", "a secret", inherited, dict.fromkeys(SHAPE.tasks, "127.0.0.1:1"))
    assert run.task_environment(TaskName("worker", 0), 0)["PYTHONPATH"] == expected
    assert run.task_environment(TaskName("ps", 0), 0).get("PYTHONPATH") == inherited.get("PYTHONPATH")


def test_workers_that_run_the_script_are_told_nothing() -> None:
    with pytest.raises(LaunchError, match="add --single-client"):
        JobShape(("train",), allowed_imports=("data",))


def test_parameter_servers_may_import_where_workers_run_the_script() -> None:
    shape = JobShape(("train",), ps=1, allowed_imports=("rules",), import_directory="/scripts")
    assert shape.command_of(TaskName("ps", 0)) == (*SERVE, "--allow-import", "rules")
    assert shape.command_of(TaskName("worker", 0)) == ("train",)
    run = JobRun(shape, "run-id", "a secret", {}, dict.fromkeys(shape.tasks, "127.0.0.1:1"))
    assert run.task_environment(TaskName("ps", 0), 0)["PYTHONPATH"] == "/scripts"
    assert "PYTHONPATH" not in run.task_environment(TaskName("worker", 0), 0)
