"""A cluster as a script for `sbatch`: one step, whose tasks learn from Slurm which task of the cluster each is."""

import shlex
import sys
from dataclasses import dataclass

from stratagem.cluster.roles import PS
from stratagem.environment import GENERATION, SECRET, SECRET_FILE, SNAPSHOT_DIR
from stratagem.errors import LaunchError
from stratagem.tools.emit.job import SECRET_PROGRAM, ClusterShape, Job
from stratagem.tools.emit.rendering import commands, comment

_TASK = "stratagem.tools.emit.slurm_task"
_PORT_OF_JOB = "$((20000 + SLURM_JOB_ID % 750 * 16))"
"""Jobs that share a node and were submitted soon after each other listen at different ports."""


@dataclass(frozen=True)
class Resources:
    """The resources that a job requests from Slurm."""

    nodes: int | None = None  # number of nodes; one for each task by default
    cpus_per_task: int | None = None  # cores of each task; the partition decides by default
    python: str = sys.executable  # the interpreter, on all nodes; by default the one that runs this

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
    """Return the script of a job for `sbatch`."""
    resources = resources or Resources()
    count = len(job.shape.tasks)
    nodes = count if resources.nodes is None else resources.nodes
    if nodes > count:
        raise LaunchError(
            f"--nodes {nodes}: the cluster has {count} tasks ({job.shape}), so give at most {count}"
        )
    request = {"ntasks": count, "nodes": nodes}
    if resources.cpus_per_task is not None:
        request["cpus-per-task"] = resources.cpus_per_task
    if job.shape.gpus_per_worker is not None:
        request["gpus-per-task"] = job.shape.gpus_per_worker
    sections = [
        _header(job, request),
        _secret(job, resources),
        *([_snapshots(job)] if job.keeps_snapshots else []),
        *([_grace(job)] if job.shape.ps and job.grace_seconds else []),
        _run(job, request),
    ]
    return "\n".join(sections)


def _header(job: Job, request: dict[str, int]) -> str:
    options = {"job-name": job.name, **request, "output": "%x-%j.log"}
    if job.grace_seconds:
        # A script that restarts failed tasks must know that this is not a failure.
        options["signal"] = f"{'B:' if job.max_restarts else ''}TERM@{job.grace_seconds}"
    lines = ["#!/bin/bash", *(f"#SBATCH --{name}={value}" for name, value in options.items())]
    paragraphs = [
        f"{job.script} on a cluster of {job.shape}, in that order, with one Slurm task for each.",
        "Give partition, account and time to sbatch, or add them above. Submit this file from the directory to which\n"
        "the script's path is relative; all nodes must see it:\n" + commands(["sbatch FILE"]),
    ]
    if job.shape.gpus_per_worker is not None and job.shape.ps:
        paragraphs.append(
            "Slurm gives every task of a step the same resources: parameter servers get GPUs too, and do not use them."
        )
    return "\n".join(lines) + "\n#\n" + comment(*paragraphs)


def _secret(job: Job, resources: Resources) -> str:
    python = shlex.quote(resources.python)
    return f"""\
set -u
python={python}

# The secret with which the tasks authenticate to each other, in a file that only its owner can read.
private=$(mktemp -d "$PWD/.{job.name}-$SLURM_JOB_ID.XXXXXX") || exit 1
trap 'rm -rf -- "$private"' EXIT
(umask 077 && "$python" -c '{SECRET_PROGRAM}' > "$private/secret") || exit 1
unset {SECRET}
export {SECRET_FILE}="$private/secret"
"""


def _snapshots(job: Job) -> str:
    return f"""\
# Where the parameter servers keep the snapshots from which they recover.
export {SNAPSHOT_DIR}="$PWD/{job.name}-$SLURM_JOB_ID.snapshots"
"""


def _grace(job: Job) -> str:
    return f"""\
# Slurm asks all tasks to end at the same time: servers stay up for this many seconds, while workers save.
{"".join(f"export {name}={value}" for name, value in job.grace_environment(PS).items())}
"""


def _run(job: Job, request: dict[str, int]) -> str:
    return _run_with_restarts(job, request) if job.max_restarts else f"{_step(job, request, '')}\nexit\n"


def _run_with_restarts(job: Job, request: dict[str, int]) -> str:
    remove = f'if ((code == 0)); then rm -rf -- "${SNAPSHOT_DIR}"; fi\n' if job.keeps_snapshots else ""
    return f"""\
# Slurm cannot restart a single task: after a failure all are restarted, as a new generation. Not when Slurm ends the job:
# then it signals this script, and this script signals the tasks.
is_ending=
trap 'is_ending=yes; scancel --signal=TERM "$SLURM_JOB_ID"' TERM

for ((generation = 0; generation <= {job.max_restarts}; generation++)); do
    export {GENERATION}=$generation
{_step(job, request, "    ")} &
    step=$!
    wait "$step"
    code=$?
    # A signal ends the wait, but not the step.
    while kill -0 "$step" 2> /dev/null; do
        wait "$step"
        code=$?
    done
    if ((code == 0)) || [[ -n $is_ending ]]; then break; fi
done
{remove}exit "$code"
"""


def _step(job: Job, request: dict[str, int], indent: str) -> str:
    """Return the command that starts all tasks, without a line's end."""
    port = f'"{_PORT_OF_JOB}"' if job.port is None else str(job.port)
    words = [shlex.quote(word) for word in job.command()]
    if job.is_python:
        words[0] = '"$python"'
    lines = [
        " ".join(["srun --export=ALL", *(f"--{name}={value}" for name, value in request.items())]),
        "--distribution=block --kill-on-bad-exit=1 --wait=0 --label",
        f'"$python" -P -m {_TASK} {" ".join(task_arguments(job.shape, port))}',
        " ".join(words),
    ]
    return indent + f" \\\n{indent}    ".join(lines)


def task_arguments(shape: ClusterShape, port: str) -> list[str]:
    """Return the words that tell a task the shape, up to the script's command; `port` may be a shell expression."""
    words = ["--ps", str(shape.ps), "--workers", str(shape.workers)]
    words += ["--single-client"] if shape.single_client else []
    words += ["--evaluator"] if shape.evaluator else []
    words += ["--devices-per-worker", str(shape.devices_per_worker)] if shape.devices_per_worker else []
    return [*words, "--port", port, "--"]
