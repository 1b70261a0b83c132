"""`stratagem demo`: training by one worker, by two in step, and on parameter servers of which some are killed."""

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
    "--workers", default=2, metavar="N", type=click.IntRange(min=2), help="Number of workers of each cluster."
)
def demo(workers: int) -> None:
    """Train a model of digits with one worker, with several workers, and through the loss of processes."""
    cores = max(1, len(os.sched_getaffinity(0)) // workers)
    share = "one core" if cores == 1 else f"{cores} cores"
    _run_part(f"One worker with {share}:", JobShape(_demo_job("--cores", str(cores)), workers=1))
    _run_part(
        f"{workers} workers in step, each with {share}; the same batches:",
        JobShape(_demo_job(), workers=workers),
    )
    _run_part(
        f"{workers} workers and 2 parameter servers, of which some will be killed:",
        JobShape(_demo_job("--recovery"), workers=workers, ps=2),
    )
    click.secho("Nothing was started by hand, and nothing is left running. To try next:", bold=True)
    click.echo(f"  stratagem run --workers {workers} your_script.py")
    click.echo(f"  stratagem run --ps 1 --workers {workers} --max-restarts 3 your_script.py")
    click.echo("  stratagem bench")


def _demo_job(*arguments: str) -> tuple[str, ...]:
    return user_command(str(files("stratagem.tools.launch").joinpath("demo_job.py")), arguments)


def _run_part(title: str, shape: JobShape) -> None:
    click.secho(title, bold=True)
    code = run_job(shape, Policy(shape.tasks, shape.servers, _RESTARTS if shape.ps else 0, "task"))
    if code != 0:
        sys.exit(code)
