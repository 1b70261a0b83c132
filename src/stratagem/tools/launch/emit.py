"""`stratagem emit`: files that start a cluster elsewhere, from the options of `stratagem run`."""

import os
from collections.abc import Callable
from dataclasses import fields, replace
from functools import wraps
from pathlib import Path
from typing import Any

import click

from stratagem.errors import LaunchError
from stratagem.tools.emit import (
    ClusterShape,
    Job,
    Pods,
    Resources,
    compose_file,
    kubernetes_file,
    slurm_script,
    tfjob_file,
)
from stratagem.tools.emit.job import DEFAULT_GRACE, DEFAULT_IMAGE, DEFAULT_PORT
from stratagem.tools.launch.job_shape import user_command

_NUMBER = click.IntRange(min=0)
_AT_LEAST_ONE = click.IntRange(min=1)
_Renderer = Callable[..., str]
_Command = Callable[..., None]

_OPTIONS = [
    click.option("--ps", default=1, metavar="N", type=_NUMBER, help="Number of parameter servers."),
    click.option("--workers", default=3, metavar="N", type=_AT_LEAST_ONE, help="Number of workers."),
    click.option("--evaluator", is_flag=True, help="Add an evaluator beside the cluster."),
    click.option("--single-client", is_flag=True, help="Run SCRIPT once, as the chief; workers only serve."),
    click.option(
        "--devices-per-worker", metavar="K", type=_AT_LEAST_ONE, help="Virtual CPU devices of each worker."
    ),
    click.option("--gpus-per-worker", metavar="K", type=_AT_LEAST_ONE, help="GPUs of each worker."),
    click.option("--max-restarts", default=0, metavar="R", type=_NUMBER, help="Maximum number of restarts."),
    click.option(
        "--grace",
        default=DEFAULT_GRACE,
        metavar="S",
        type=click.FloatRange(min=0),
        help="Seconds that tasks have to save after SIGTERM.",
    ),
    click.option("--name", metavar="NAME", help="Name of the job.  [default: made from SCRIPT's name]"),
    click.option("--port", metavar="PORT", type=int, help="Port on which tasks listen."),
    click.option(
        "-o",
        "--output",
        metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        help="File to write.  [default: print]",
    ),
    click.option("--overwrite", is_flag=True, help="Replace FILE if it exists."),
    click.argument("script"),
    click.argument("arguments", nargs=-1, type=click.UNPROCESSED),
]
_IMAGE = click.option("--image", default=DEFAULT_IMAGE, metavar="IMAGE", help="Image of all tasks.")
_IN_IMAGE = click.option("--script-in-image", is_flag=True, help="SCRIPT is a path in the image.")
_SETTINGS = {"allow_interspersed_args": False}


def _emit_command(render: _Renderer) -> _Command:
    """Return a command with the common options, made from a function of the job and the command's own options."""

    @wraps(render)
    def command(
        script: str,
        arguments: tuple[str, ...],
        name: str | None,
        port: int | None,
        max_restarts: int,
        grace: float,
        output: Path | None,
        overwrite: bool,
        **options: Any,
    ) -> None:
        shape = ClusterShape(**{field.name: options.pop(field.name) for field in fields(ClusterShape)})
        job = Job(shape, script, arguments, name or "", port, max_restarts, grace)
        _write(render(job, output, **options), output, overwrite)

    decorated: _Command = command
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


@click.group()
def emit() -> None:
    """Print files that start a cluster elsewhere.

    Workers run SCRIPT, and worker 0 is the chief; parameter servers run `stratagem serve`. The files never contain the
    secret of the cluster: their first lines say how to make it.
    """


@emit.command(
    context_settings=_SETTINGS,
    epilog=f"""\b
Every task listens on port {DEFAULT_PORT} by default, which is not open to the outside.
\b
Example:
  stratagem emit compose --ps 1 --workers 3 --image train:1.0 -o compose.yaml train.py --steps 1000""",
)
@_IMAGE
@_IN_IMAGE
@_emit_command
def compose(job: Job, output: Path | None, image: str, script_in_image: bool) -> str:
    """Print a compose file, with a service for each task.

    The current directory, or that of SCRIPT if it is elsewhere, is mounted in the containers that run SCRIPT.
    """
    if script_in_image:
        return compose_file(job, image)
    user_command(job.script, ())  # raises if it is not a script
    directory, path = _mount(output, Path(job.script))
    return compose_file(replace(job, script=path), image, directory)


@emit.command(
    context_settings=_SETTINGS,
    epilog=f"""\b
Every task listens on port {DEFAULT_PORT} by default, within the Kubernetes cluster.
\b
Example:
  stratagem emit k8s --kind tfjob --image train:1.0 --gpus-per-worker 1 train.py | kubectl apply -f -""",
)
@click.option(
    "--kind",
    default="jobs",
    type=click.Choice(["jobs", "tfjob"]),
    help="Plain Jobs, or a TFJob for Kubeflow's training operator.",
)
@_IMAGE
@_IN_IMAGE
@click.option(
    "--snapshot-claim",
    metavar="CLAIM",
    help="PersistentVolumeClaim that allows many writers, for the servers' snapshots.  [default: keep no snapshots]",
)
@_emit_command
def k8s(
    job: Job, output: Path | None, kind: str, image: str, script_in_image: bool, snapshot_claim: str | None
) -> str:
    """Print Kubernetes objects, with SCRIPT in a ConfigMap.

    Build a job of several files into the image, and use --script-in-image.
    """
    pods = Pods(job, image, None if script_in_image else _text_of(job.script), snapshot_claim)
    return tfjob_file(pods) if kind == "tfjob" else kubernetes_file(pods)


@emit.command(
    context_settings=_SETTINGS,
    epilog="""\b
Tasks listen on ports computed from the job's number, or on PORT and above.
\b
Example:
  stratagem emit slurm --ps 1 --workers 3 --cpus-per-task 8 -o train.sbatch train.py && sbatch train.sbatch""",
)
@click.option(
    "--nodes", metavar="N", type=_AT_LEAST_ONE, help="Number of nodes.  [default: one for each task]"
)
@click.option("--cpus-per-task", metavar="C", type=_AT_LEAST_ONE, help="Cores of each task.")
@click.option(
    "--python",
    default=Resources.python,
    metavar="PATH",
    show_default="the interpreter that runs this command",
    help="Path of Python on all nodes.",
)
@_emit_command
def slurm(job: Job, output: Path | None, nodes: int | None, cpus_per_task: int | None, python: str) -> str:
    """Print a script for sbatch, which starts all tasks in one step."""
    user_command(job.script, ())  # raises if it is not a script
    return slurm_script(job, Resources(nodes, cpus_per_task, python))


def _mount(output: Path | None, script: Path) -> tuple[str, str]:
    """Return the directory to mount, relative to the compose file, and the script's path in it."""
    here, path = Path.cwd(), script.resolve()
    if not path.is_relative_to(here):
        return str(path.parent), path.name
    compose_directory = here if output is None else output.resolve().parent
    directory = Path(os.path.relpath(here, compose_directory)).as_posix()
    relative = directory if directory.startswith(".") else f"./{directory}"
    return relative, path.relative_to(here).as_posix()


def _text_of(script: str) -> str:
    user_command(script, ())  # raises if it is not a script
    try:
        return Path(script).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(
            f"cannot put {script!r} into a ConfigMap ({error}): give a readable text file, or build it into the image "
            "(--script-in-image)"
        ) from error


def _write(text: str, output: Path | None, overwrite: bool) -> None:
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        with output.open("w" if overwrite else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise LaunchError(f"{output} exists already; give another --output, or --overwrite") from error
    except OSError as error:
        raise LaunchError(f"cannot write {output}: {error.strerror}") from error
