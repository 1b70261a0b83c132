"""`stratagem demo`: training by one worker, by two, and on parameter servers that are killed on the way."""

import os
import sys
from importlib.resources import files

import click

from stratagem.tools.launch.job_shape import JobShape, user_command
from stratagem.tools.launch.policy import Policy
from stratagem.tools.launch.run import run_job

_RESTARTS = 5


@click.command()
@click.option(
    "--workers",
    default=2,
    metavar="N",
    type=click.IntRange(min=2),
    help="Workers of each cluster.  [default: 2]",
)
def demo(workers: int) -> None:
    """Train a digits model with one worker, with several, and through losses."""
    cores = max(1, len(os.sched_getaffinity(0)) // workers)
    share = "one core" if cores == 1 else f"{cores} cores"
    _act(f"One worker with {share}:", JobShape(_script("demo_job.py", "--cores", str(cores)), workers=1))
    _act(
        f"{workers} workers in step, each with {share}; the same batches:",
        JobShape(_script("demo_job.py"), workers=workers),
    )
    _act(
        f"{workers} workers and 2 parameter servers, of which some will be killed:",
        JobShape(_script("demo_recovery.py"), workers=workers, ps=2),
    )
    click.secho("Nothing was started by hand, and nothing is left running. To try next:", bold=True)
    click.echo(f"  stratagem run --workers {workers} your_script.py")
    click.echo(f"  stratagem run --ps 1 --workers {workers} --max-restarts 3 your_script.py")
    click.echo("  stratagem bench")


def _script(name: str, *arguments: str) -> tuple[str, ...]:
    return user_command(str(files("stratagem.tools.launch").joinpath(name)), arguments)


def _act(title: str, shape: JobShape) -> None:
    click.secho(title, bold=True)
    code = run_job(shape, Policy(shape.tasks, shape.servers, _RESTARTS if shape.ps else 0, "task"))
    if code != 0:
        sys.exit(code)
