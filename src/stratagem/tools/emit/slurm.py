"""A cluster as a script for `sbatch`: one step, whose tasks find out from Slurm which task of the cluster they are."""

import shlex
import sys
from dataclasses import dataclass

from stratagem.cluster.roles import PS
from stratagem.environment import GENERATION, SECRET, SECRET_FILE, SNAPSHOT_DIR
from stratagem.errors import LaunchError
from stratagem.tools.emit import placing
from stratagem.tools.emit.comments import commands, comment
from stratagem.tools.emit.job import Job
from stratagem.tools.emit.shape import ClusterShape

_TASK = "stratagem.tools.emit.slurm_task"
_PORT_OF_JOB = "$((20000 + SLURM_JOB_ID % 750 * 16))"
"""Jobs that share a node, and came soon after each other, listen at different ports."""


@dataclass(frozen=True)
class Resources:
    """What the job asks Slurm for.

    Attributes:
        nodes: Number of nodes; one for each task by default.
        cpus_per_task: Cores of each task; what the partition gives by default.
        python: The interpreter, on all nodes; the one that runs this by default, with all that is installed beside it.
    """

    nodes: int | None = None
    cpus_per_task: int | None = None
    python: str = sys.executable

    def __post_init__(self) -> None:
        if self.nodes is not None and self.nodes < 1:
            raise LaunchError(f"--nodes {self.nodes}: a job needs at least 1 node")
        if self.cpus_per_task is not None and self.cpus_per_task < 1:
            raise LaunchError(f"--cpus-per-task {self.cpus_per_task}: a task needs at least 1 core")
        if not self.python or not self.python.isprintable():
            raise LaunchError(
                f"--python {self.python!r}: give the path of an interpreter that all nodes have"
            )


def slurm_script(job: Job, resources: Resources | None = None) -> str:
    """The script of a job for `sbatch`.

    Raises:
        LaunchError: More nodes than tasks.
    """
    resources = resources or Resources()
    count = len(job.shape.tasks)
    nodes = count if resources.nodes is None else resources.nodes
    if nodes > count:
        raise LaunchError(
            f"--nodes {nodes}: the cluster has {count} tasks ({job.shape}), so give at most {count}"
        )
    wanted = {"ntasks": count, "nodes": nodes}
    if resources.cpus_per_task is not None:
        wanted["cpus-per-task"] = resources.cpus_per_task
    if job.shape.gpus_per_worker is not None:
        wanted["gpus-per-task"] = job.shape.gpus_per_worker
    parts = [
        _header(job, wanted),
        _secret(job, resources),
        *([_snapshots(job)] if job.keeps_snapshots else []),
        *([_grace(job)] if job.shape.ps and job.grace_seconds else []),
        _run(job, wanted),
    ]
    return "\n".join(parts)


def _header(job: Job, wanted: dict[str, int]) -> str:
    options = {"job-name": job.name, **wanted, "output": "%x-%j.log"}
    if job.grace_seconds:
        # Where failures are recovered from, the script itself has to know that this is none.
        options["signal"] = f"{'B:' if job.max_restarts else ''}TERM@{job.grace_seconds}"
    lines = ["#!/bin/bash", *(f"#SBATCH --{name}={value}" for name, value in options.items())]
    paragraphs = [
        f"{job.script} on a cluster of {job.shape}, in that order: one task of Slurm each.",
        "Partition, account and time are given to sbatch, or added above. Submit it from the directory that the\n"
        "script's path begins in, and that all nodes see:\n" + commands(["sbatch FILE"]),
    ]
    if job.shape.gpus_per_worker is not None and job.shape.ps:
        paragraphs.append(
            "Slurm gives every task of a step the same: parameter servers have GPUs, and leave them alone."
        )
    return "\n".join(lines) + "\n#\n" + comment(*paragraphs)


def _secret(job: Job, resources: Resources) -> str:
    python = shlex.quote(resources.python)
    return f"""\
set -u
python={python}

# The secret by which the tasks know each other is in a file that only its owner can read.
private=$(mktemp -d "$PWD/.{job.name}-$SLURM_JOB_ID.XXXXXX") || exit 1
trap 'rm -rf -- "$private"' EXIT
(umask 077 && "$python" -c '{placing.SECRET_PROGRAM}' > "$private/secret") || exit 1
unset {SECRET}
export {SECRET_FILE}="$private/secret"
"""


def _snapshots(job: Job) -> str:
    return f"""\
# Where the parameter servers keep what they come back to.
export {SNAPSHOT_DIR}="$PWD/{job.name}-$SLURM_JOB_ID.snapshots"
"""


def _grace(job: Job) -> str:
    return f"""\
# Slurm asks all tasks to end at once: servers go on for so long, while workers save what is there.
{"".join(f"export {name}={value}" for name, value in job.grace_environment(PS).items())}
"""


def _run(job: Job, wanted: dict[str, int]) -> str:
    return _run_again(job, wanted) if job.max_restarts else f"{_step(job, wanted, '')}\nexit\n"


def _run_again(job: Job, wanted: dict[str, int]) -> str:
    remove = f'if ((code == 0)); then rm -rf -- "${SNAPSHOT_DIR}"; fi\n' if job.keeps_snapshots else ""
    return f"""\
# Slurm starts no single task again: after a failure all start again, as a new generation. Not when the job is to end,
# which Slurm tells this script, and this script the tasks.
is_ending=
trap 'is_ending=yes; scancel --signal=TERM "$SLURM_JOB_ID"' TERM

for ((generation = 0; generation <= {job.max_restarts}; generation++)); do
    export {GENERATION}=$generation
{_step(job, wanted, "    ")} &
    step=$!
    wait "$step"
    code=$?
    # A signal ends the wait, and not the step.
    while kill -0 "$step" 2> /dev/null; do
        wait "$step"
        code=$?
    done
    if ((code == 0)) || [[ -n $is_ending ]]; then break; fi
done
{remove}exit "$code"
"""


def _step(job: Job, wanted: dict[str, int], indent: str) -> str:
    """The command that starts all tasks, without a line's end."""
    port = f'"{_PORT_OF_JOB}"' if job.port is None else str(job.port)
    words = [shlex.quote(word) for word in job.command()]
    if job.is_python:
        words[0] = '"$python"'
    lines = [
        " ".join(["srun --export=ALL", *(f"--{name}={value}" for name, value in wanted.items())]),
        "--distribution=block --kill-on-bad-exit=1 --wait=0 --label",
        f'"$python" -P -m {_TASK} {" ".join(task_arguments(job.shape, port))}',
        " ".join(words),
    ]
    return indent + f" \\\n{indent}    ".join(lines)


def task_arguments(shape: ClusterShape, port: str) -> list[str]:
    """The command line that tells a task the shape, up to the script's command; `port` may be a shell's expression."""
    words = ["--ps", str(shape.ps), "--workers", str(shape.workers)]
    words += ["--single-client"] if shape.single_client else []
    words += ["--evaluator"] if shape.evaluator else []
    words += ["--devices-per-worker", str(shape.devices_per_worker)] if shape.devices_per_worker else []
    return [*words, "--port", port, "--"]
