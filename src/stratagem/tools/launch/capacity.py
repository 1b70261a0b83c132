"""`stratagem plan`: how many workers and servers a job is worth, and under which rule."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stratagem.errors import LaunchError

if TYPE_CHECKING:
    from stratagem.tools.planning.figures import Figures

_EXAMPLE = """\b
Example:
  stratagem plan --step-time 50ms --model-size 25Mparams --bandwidth 10Gbit --stragglers lognormal:0.2
  stratagem plan --measure --model-size 4MB --workers 1,2,4,8"""


def _read_as(kind: str) -> Callable[[click.Context, click.Parameter, str | None], float | None]:
    """Reads a number with a unit, by a function of `stratagem.tools.planning.units`."""

    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
        from stratagem.tools.planning import units

        try:
            found: float | None = None if value is None else getattr(units, kind)(value)
        except LaunchError as error:
            raise click.BadParameter(str(error), ctx, param) from None
        return found

    return read


_SECONDS, _SIZE, _RATE = _read_as("seconds"), _read_as("size"), _read_as("rate")


@click.command(epilog=_EXAMPLE)
@click.option(
    "--step-time", callback=_SECONDS, metavar="T", help="A worker's time for one gradient, such as 50ms."
)
@click.option(
    "--model-size", callback=_SIZE, metavar="SIZE", help="Of the parameters: 100MB, or 25Mparams of 4 bytes."
)
@click.option("--measure", is_flag=True, help="Measure what is not given, by a short job on this machine.")
@click.option(
    "--bandwidth", callback=_RATE, metavar="RATE", help="Of each host, each way.  [default: 10Gbit]"
)
@click.option("--latency", callback=_SECONDS, metavar="T", help="From host to host.  [default: 50us]")
@click.option(
    "--update-per-byte",
    callback=_SECONDS,
    metavar="T",
    help="A server's update, per byte it holds.  [default: 0.3ns]",
)
@click.option(
    "--average-per-byte",
    callback=_SECONDS,
    metavar="T",
    help="To add a gradient to an average.  [default: 0.1ns]",
)
@click.option(
    "--request-time",
    callback=_SECONDS,
    metavar="T",
    help="A server's time for any request.  [default: 200us]",
)
@click.option(
    "--batch", type=click.IntRange(min=1), metavar="N", help="Examples of one gradient of one worker."
)
@click.option(
    "--stragglers",
    default="lognormal:0.05",
    metavar="HOW",
    help="How steps vary: none, lognormal:0.2, exponential:0.3, pareto:3, or slow:0.1x3 (a tenth of the workers three "
    "times slower); joined by +.  [default: lognormal:0.05]",
)
@click.option(
    "--mtbf", callback=_SECONDS, metavar="T", help="Mean time between failures of one task, such as 24h."
)
@click.option("--restart-time", callback=_SECONDS, metavar="T", help="Of a task that failed.  [default: 30s]")
@click.option(
    "--snapshot-interval", callback=_SECONDS, metavar="T", help="Between snapshots.  [default: 60s]"
)
@click.option(
    "--workers",
    default="1,2,4,8,16,32,64",
    metavar="N,N,…",
    help="Numbers of workers; 1,2,…,1024 doubles.  [default: 1,2,4,8,16,32,64]",
)
@click.option(
    "--rules",
    default="all-reduce,sync,backup,async,bounded",
    metavar="RULE,…",
    help="Among all-reduce, sync, backup, async, overlap, bounded.  [default: all but overlap]",
)
@click.option(
    "--backup", default=0.05, metavar="N", type=float, help="Backup workers, or their share.  [default: 0.05]"
)
@click.option(
    "--staleness",
    default=4,
    metavar="K",
    type=int,
    help="How far ahead a bounded worker may be.  [default: 4]",
)
@click.option(
    "--servers", type=int, metavar="P", help="Parameter servers.  [default: as many as it is worth]"
)
@click.option(
    "--max-servers", default=64, type=int, metavar="P", help="How many to try at most.  [default: 64]"
)
@click.option(
    "--collective", type=click.Choice(["ring", "tree"]), help="How an all-reduce goes.  [default: ring]"
)
@click.option(
    "--seed", default=0, type=int, metavar="N", help="Of the simulation's random numbers.  [default: 0]"
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def plan(
    step_time: float | None,
    model_size: float | None,
    measure: bool,
    stragglers: str,
    mtbf: float | None,
    restart_time: float | None,
    snapshot_interval: float | None,
    workers: str,
    rules: str,
    backup: float,
    staleness: int,
    servers: int | None,
    max_servers: int,
    seed: int,
    as_json: bool,
    **known: Any,
) -> None:
    """Plan the capacity of a job, by simulating workers and parameter servers.

    For every number of workers and every rule: how many parameter servers it is worth (the fewest within 5 % of the
    best), steps and examples per second, the efficiency of a worker against one by itself, how stale gradients are, and
    what is busiest. Nothing is started, except with --measure.
    """
    from rich.console import Console

    from stratagem.tools.launch.wide_console import wide_console
    from stratagem.tools.planning.advice import advise
    from stratagem.tools.planning.capacity import make_plan
    from stratagem.tools.planning.failures import Failures
    from stratagem.tools.planning.report import plain, table
    from stratagem.tools.planning.rules import Choice
    from stratagem.tools.planning.stragglers import Stragglers

    failing = {"mtbf": mtbf, "restart_time": restart_time, "snapshot_interval": snapshot_interval}
    given = {
        **{name: value for name, value in known.items() if value is not None},
        "stragglers": Stragglers.parse(stragglers),
        "failures": Failures(**{name: value for name, value in failing.items() if value is not None}),
    }
    choices = [Choice(name.strip(), backup, staleness) for name in rules.split(",")]
    counts = _counts(workers)
    figures = _figures(step_time, model_size, measure, given)
    with Console(stderr=True).status("simulating") as status:
        lines = make_plan(
            figures,
            choices,
            counts,
            servers=servers,
            most_servers=max_servers,
            seed=seed,
            tell=lambda count, rule: status.update(f"simulating {count} workers, {rule}"),
        )
    if as_json:
        click.echo(json.dumps(plain(figures, lines), indent=2))
        return
    console = wide_console()
    console.print(_assumed(figures), highlight=False)
    console.print(table(lines))
    for sentence in advise(lines):
        console.print(sentence, highlight=False)


def _counts(text: str) -> list[int]:
    """The numbers of workers; `…` or `...` goes on by doubling."""
    numbers: list[int] = []
    is_gap = False
    for word in text.split(","):
        if word.strip() in ("…", "..."):
            is_gap = True
            continue
        try:
            number = int(word)
        except ValueError:
            number = 0
        if number < 1 or (numbers and number <= numbers[-1]) or (is_gap and not numbers):
            raise LaunchError(
                f"--workers {text}: {word.strip()!r} is out of place; give rising whole numbers, such as 1,2,4 or 1,2,…,1024"
            )
        while is_gap and numbers[-1] * 2 < number:
            numbers.append(numbers[-1] * 2)
        numbers.append(number)
        is_gap = False
    if is_gap:
        raise LaunchError(f"--workers {text}: say where it ends, such as 1,2,…,1024")
    return numbers


def _figures(
    step_time: float | None, model_size: float | None, measure: bool, given: dict[str, Any]
) -> "Figures":
    """What is given, and for the rest what was measured or is usual."""
    from stratagem.tools.planning.figures import Figures

    if model_size is None:
        raise LaunchError("give the model's size, such as --model-size 100MB or --model-size 25Mparams")
    if measure:
        measured = _measure(model_size, given.get("batch", 32))
        if step_time is not None:
            given = {**given, "step_time": step_time}
        return replace(measured, **given)
    if step_time is None:
        raise LaunchError("give a worker's time for one gradient, such as --step-time 50ms, or --measure")
    return Figures(step_time=step_time, model_bytes=model_size, **given)


def _measure(model_size: float, batch: int) -> "Figures":
    """The figures of this machine."""
    from stratagem.tools import planning
    from stratagem.tools.planning.measuring import Measured

    script = Path(planning.__file__).with_name("measuring_job.py")
    with tempfile.TemporaryDirectory(prefix="stratagem-plan-") as directory:
        result = Path(directory) / "measured.json"
        command = [sys.executable, "-m", "stratagem", "run", "--ps", "1", "--workers", "1", str(script)]
        # What tasks say goes to stderr: standard output is the plan's.
        done = subprocess.run([*command, str(result), str(int(model_size)), str(batch)], stdout=sys.stderr)
        if done.returncode != 0:
            raise LaunchError(
                "the job that measures this machine failed, as told above; give --step-time and the other figures instead"
            )
        return Measured.read(result).figures()


def _assumed(figures: "Figures") -> str:
    """The figures that a plan is made of, in a line."""
    from stratagem.tools.planning.units import show_bytes, show_seconds

    said = [
        f"step {show_seconds(figures.step_time)}",
        f"model {show_bytes(figures.model_bytes)}",
        f"link {show_bytes(figures.bandwidth)}/s, {show_seconds(figures.latency)}",
        f"update {show_seconds(figures.update_per_byte * figures.model_bytes)}",
        f"request {show_seconds(figures.request_time)}",
        f"stragglers {figures.stragglers}",
    ]
    return " · ".join(said)
