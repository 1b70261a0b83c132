"""`stratagem run`: a whole cluster of local processes with one command."""

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from stratagem import environment
from stratagem.devices import visible_gpus
from stratagem.tools.launch.job_shape import JobShape, require_linux, user_command
from stratagem.tools.launch.output import LogFiles
from stratagem.tools.launch.policy import Policy, RestartRule
from stratagem.tools.launch.supervisor import Supervisor
from stratagem.tools.launch.tasks import EXIT_FAILED

_NUMBER = click.IntRange(min=0)
_AT_LEAST_ONE = click.IntRange(min=1)
_EXAMPLE = """\b
Example:
  stratagem run --ps 1 --workers 2 train.py --steps 1000"""


@click.command(context_settings={"allow_interspersed_args": False}, epilog=_EXAMPLE)
@click.option("--ps", default=0, metavar="N", type=_NUMBER, help="Number of parameter servers.")
@click.option("--workers", default=1, metavar="N", type=_AT_LEAST_ONE, help="Number of workers.")
@click.option("--evaluator", is_flag=True, help="Add an evaluator beside the cluster.")
@click.option("--single-client", is_flag=True, help="Run SCRIPT once, as the chief; workers only serve.")
@click.option(
    "--allow-import",
    "allowed",
    metavar="MODULE",
    multiple=True,
    help="A module, also one beside SCRIPT, that parameter servers may import for update rules; with --single-client, that "
    "workers may import for datasets. May be given several times.",
)
@click.option(
    "--devices-per-worker",
    metavar="K",
    type=_AT_LEAST_ONE,
    help="Devices of each worker: a share of the GPUs, or virtual CPU devices.  [default: all that it finds]",
)
@click.option(
    "--max-restarts", default=0, metavar="R", type=_NUMBER, help="Maximum number of restarts in the run."
)
@click.option(
    "--restart",
    "rule",
    type=click.Choice(["task", "job"]),
    help="Restart the failed task alone, or the whole job.  [default: task with parameter servers, else job]",
)
@click.option(
    "--grace",
    default=2.0,
    metavar="S",
    type=click.FloatRange(min=0),
    help="Seconds that tasks have to save after SIGTERM.",
)
@click.option(
    "--log-dir",
    metavar="D",
    type=click.Path(path_type=Path),
    help="Also write the output of each task to D/JOB-INDEX.log.",
)
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    ps: int,
    allowed: tuple[str, ...],
    max_restarts: int,
    rule: RestartRule | None,
    grace: float,
    log_dir: Path | None,
    script: str,
    arguments: tuple[str, ...],
    **shape_options: Any,
) -> None:
    """Run SCRIPT on a cluster of local processes, each with its own TF_CONFIG.

    Workers run SCRIPT, and worker 0 is the chief; parameter servers run `stratagem serve`. All processes end together:
    when the job is done, when a task fails, on Ctrl-C, on SIGTERM, when the terminal is closed, and when this
    command itself is killed. Exit codes: 0 done, 1 a task failed, 2 wrong usage, 130 Ctrl-C, 143 SIGTERM,
    129 closed terminal.
    """
    shape = JobShape(
        user_command(script, arguments),
        ps=ps,
        allowed_imports=allowed,
        import_directory=str(Path(script).resolve().parent) if allowed else None,
        gpus=visible_gpus(environment.current()),
        **shape_options,
    )
    policy = Policy(shape.tasks, shape.servers, max_restarts, rule or ("task" if ps else "job"), grace)
    sys.exit(run_job(shape, policy, None if log_dir is None else LogFiles(log_dir, shape.tasks)))


def run_job(shape: JobShape, policy: Policy | None = None, log_files: LogFiles | None = None) -> int:
    """Run a job of local processes in the foreground, to its end. Return the exit code of this command."""
    require_linux()
    inherited = dict(environment.current())
    snapshots = None
    if shape.ps and environment.snapshot_dir(inherited) is None:
        snapshots = Path(tempfile.mkdtemp(prefix="stratagem-snapshots-"))
        inherited[environment.SNAPSHOT_DIR] = str(snapshots)
    code = EXIT_FAILED
    try:
        code = Supervisor(
            shape,
            policy or Policy(shape.tasks, shape.servers),
            inherited=inherited,
            log_files=log_files,
            colour=os.isatty(1) and not environment.no_colour(),
        ).run()
    finally:
        if snapshots is not None:
            _leave_snapshots(snapshots, is_needed=code != 0)
    return code


def _leave_snapshots(directory: Path, is_needed: bool) -> None:
    """Remove the directory of the parameter servers' snapshots, or say where it is if a failed job may resume from them."""
    if not is_needed or not any(directory.iterdir()):
        shutil.rmtree(directory, ignore_errors=True)
    else:
        sys.stderr.write(
            f"stratagem: the parameter servers' last snapshots are in {directory}; to resume from them, start the job again "
            f"with {environment.SNAPSHOT_DIR}={directory}\n"
        )
