"""`stratagem demo`: one training script, first on one device, then on a cluster of real processes."""

import sys
from importlib.resources import files

import click

from stratagem.launch.plan import JobShape, user_command
from stratagem.launch.run import run_job


@click.command()
@click.option(
    "--workers",
    default=2,
    metavar="N",
    type=click.IntRange(min=2),
    help="Workers of the cluster.  [default: 2]",
)
def demo(workers: int) -> None:
    """Train the embedded digits on one device, then on a local cluster, with the same script."""
    command = user_command(str(files("stratagem.launch").joinpath("demo_job.py")), ())
    for count, where in ((1, "one device"), (workers, f"a cluster of {workers} workers, one process each")):
        click.secho(f"The 8x8 digits on {where}: 600 steps, 120 images each", bold=True)
        code = run_job(JobShape(command, workers=count))
        if code != 0:
            sys.exit(code)
    click.secho("The same script, the same batches, the same model. Now with yours:", bold=True)
    click.echo("  stratagem run --workers 2 your_script.py")
