"""Scripts for sbatch, and what a task of the step makes of Slurm's variables."""

import re
import shlex
import sys

import pytest

import stratagem as sg
from stratagem.errors import LaunchError
from stratagem.tools.emit import ClusterShape, Job, Resources, slurm_script
from stratagem.tools.emit.slurm import task_arguments
from stratagem.tools.emit.slurm_task import read_arguments, task_environment


def directives(text: str) -> dict[str, str]:
    """What sbatch reads: the comments before the first command."""
    head = text.partition("\nset -u\n")[0]
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", head, re.MULTILINE))


def step(text: str) -> list[str]:
    """The words after `srun`, as bash splits them, with variables left as they are."""
    found = re.split(r"\bsrun ", text)[1].partition("\nexit")[0].partition(" &\n")[0]
    return shlex.split(found.replace("\\\n", " "))


def slurm_variables(rank: int, nodes: str = "n[1-2]", counts: str = "2(x2)") -> dict[str, str]:
    return {
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_TASKS_PER_NODE": counts,
        "SLURM_PROCID": str(rank),
        "TF_CONFIG": "of somebody else",
    }


def test_asks_for_what_is_needed_and_the_step_for_the_same() -> None:
    text = slurm_script(Job(ClusterShape(), "train.py", grace=2.5), Resources(nodes=2, cpus_per_task=8))
    assert directives(text) == {
        "job-name": "train",
        "ntasks": "4",
        "nodes": "2",
        "cpus-per-task": "8",
        "output": "%x-%j.log",
        "signal": "TERM@3",
    }
    options = dict(re.findall(r"--([a-z-]+)=(\S+)", " ".join(step(text))))
    assert options == {
        "export": "ALL",
        "ntasks": "4",
        "nodes": "2",
        "cpus-per-task": "8",
        "distribution": "block",
        "kill-on-bad-exit": "1",
        "wait": "0",
    }
    assert directives(slurm_script(Job(ClusterShape(), "train.py")))["nodes"] == "4"
    assert "signal" not in directives(slurm_script(Job(ClusterShape(), "train.py", grace=0)))
    assert directives(slurm_script(Job(ClusterShape(), "train.py", max_restarts=1)))["signal"] == "B:TERM@30"
    gpus = slurm_script(Job(ClusterShape(gpus_per_worker=2), "train.py"))
    assert directives(gpus)["gpus-per-task"] == "2"
    assert "--gpus-per-task=2" in step(gpus)


def test_words_of_the_user_come_through_the_shell() -> None:
    words = ("a b", "it's", '"x"', "$HOME", "`id`", "a\nb", "\\", "!x", "*", "", "--")
    job = Job(ClusterShape(), "a b/it's.py", words)
    own = step(slurm_script(job))
    start = own.index("--") + 1
    assert own[start:] == ["$python", "a b/it's.py", *words]
    program = step(slurm_script(Job(ClusterShape(), "run it", words)))
    assert program[program.index("--") + 1 :] == ["./run it", *words]


def test_the_interpreter_is_the_one_that_wrote_the_script_unless_told_otherwise() -> None:
    job = Job(ClusterShape(), "train.py")
    assert f"\npython={shlex.quote(sys.executable)}\n" in slurm_script(job)
    text = slurm_script(job, Resources(python="/opt/my python/bin/python"))
    assert "\npython='/opt/my python/bin/python'\n" in text


def test_secret_is_made_in_the_job_and_never_shown() -> None:
    text = slurm_script(Job(ClusterShape(), "train.py"))
    assert "unset STRATAGEM_SECRET\n" in text
    assert 'export STRATAGEM_SECRET_FILE="$private/secret"' in text
    assert "secret" not in " ".join(step(text))


def test_servers_are_told_how_long_workers_have_to_save() -> None:
    grace = "\nexport STRATAGEM_GRACE=3\n"
    assert grace in slurm_script(Job(ClusterShape(), "train.py", grace=2.5))
    assert grace not in slurm_script(Job(ClusterShape(0, 4), "train.py", grace=2.5))
    assert "GRACE" not in slurm_script(Job(ClusterShape(), "train.py", grace=0))


def test_snapshots_are_kept_where_servers_are_started_again() -> None:
    snapshots = "export STRATAGEM_SNAPSHOT_DIR="
    assert snapshots in slurm_script(Job(ClusterShape(), "train.py", max_restarts=1))
    assert snapshots not in slurm_script(Job(ClusterShape(), "train.py"))
    assert snapshots not in slurm_script(Job(ClusterShape(0, 4), "train.py", max_restarts=1))


@pytest.mark.parametrize(
    "shape",
    [
        ClusterShape(),
        ClusterShape(2, 1, evaluator=True),
        ClusterShape(1, 2, single_client=True, devices_per_worker=3),
        ClusterShape(0, 4),
    ],
    ids=str,
)
def test_every_task_of_the_step_knows_its_place(shape: ClusterShape) -> None:
    addresses = ["n1:5000", "n1:5001", "n2:5000", "n2:5001"]
    for rank, (job, index) in enumerate(shape.tasks):
        own, variables = task_environment(shape, 5000, slurm_variables(rank))
        assert own == job
        config = sg.resolve_cluster([], {**slurm_variables(rank), **variables})
        assert config is not None
        assert (config.job_name, config.task_index, config.source) == (job, index, "TF_CONFIG")
        assert config.address == (None if job == "evaluator" else addresses[rank])
        listed = [
            config.cluster.task_address(name, number) for name, number in shape.tasks if name != "evaluator"
        ]
        assert listed == addresses[: len(listed)]
        assert variables.items() >= shape.environment(job).items()


def test_without_servers_slurm_says_the_same() -> None:
    variables = {**slurm_variables(3), "TF_CONFIG": ""}
    plain = sg.resolve_cluster([], variables)
    _, ours = task_environment(ClusterShape(0, 4), 8888, variables)
    told = sg.resolve_cluster([], ours)
    assert plain is not None
    assert told is not None
    assert (plain.cluster, plain.job_name, plain.task_index) == (told.cluster, told.job_name, told.task_index)


def test_one_task_alone_is_no_cluster() -> None:
    job, variables = task_environment(ClusterShape(0, 1), 5000, slurm_variables(0, "n1", "1"))
    assert job == "worker"
    assert "TF_CONFIG" not in variables


def test_a_step_of_another_size_is_refused() -> None:
    with pytest.raises(LaunchError, match=r"step has 4 tasks, and the cluster 3 .*srun --ntasks=3"):
        task_environment(ClusterShape(1, 2), 5000, slurm_variables(0))
    with pytest.raises(LaunchError, match="start it with srun --ntasks=3"):
        task_environment(ClusterShape(1, 2), 5000, {})


@pytest.mark.parametrize("shape", [ClusterShape(), ClusterShape(0, 2, True, True, 4)], ids=str)
def test_the_tasks_command_line_says_the_whole_shape(shape: ClusterShape) -> None:
    words = [*task_arguments(shape, "1234"), "python", "train.py", "--ps", "--", "7"]
    assert read_arguments(words) == (shape, 1234, ["python", "train.py", "--ps", "--", "7"])
