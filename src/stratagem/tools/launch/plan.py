"""`stratagem plan`: how many workers and servers a job is worth, and under which update rule."""

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
    from stratagem.tools.planning.job_profile import JobProfile

_EXAMPLE = """\b
Example:
  stratagem plan --step-time 50ms --model-size 25Mparams --bandwidth 10Gbit --stragglers lognormal:0.2
  stratagem plan --measure --model-size 4MB --workers 1,2,4,8"""


def _figure(
    name: str, parser: str, metavar: str, help_text: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return an option for a number with a unit, parsed by a function of `stratagem.tools.planning.units`."""

    def parse(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
        from stratagem.tools.planning import units

        try:
            number: float | None = None if value is None else getattr(units, parser)(value)
        except LaunchError as error:
            raise click.BadParameter(str(error), ctx, param) from None
        return number

    return click.option(name, callback=parse, metavar=metavar, help=help_text)


@click.command(epilog=_EXAMPLE)
@_figure("--step-time", "seconds", "T", "Time in which a worker computes one gradient, such as 50ms.")
@_figure("--model-size", "size", "SIZE", "Size of the parameters: 100MB, or 25Mparams of 4 bytes.")
@click.option(
    "--measure", is_flag=True, help="Measure the figures that are not given, with a short job here."
)
@_figure("--bandwidth", "rate", "RATE", "Bandwidth of each host, each way.  [default: 10Gbit]")
@_figure("--latency", "seconds", "T", "Latency from host to host.  [default: 50us]")
@_figure("--update-per-byte", "seconds", "T", "A server's update, per byte it holds.  [default: 0.3ns]")
@_figure("--average-per-byte", "seconds", "T", "Adding a gradient to an average, per byte.  [default: 0.1ns]")
@_figure("--request-time", "seconds", "T", "A server's time for each request.  [default: 200us]")
@click.option("--batch", type=click.IntRange(min=1), metavar="N", help="Examples in one worker's batch.")
@click.option(
    "--stragglers",
    default="lognormal:0.05",
    metavar="HOW",
    help="How step times vary: none, lognormal:0.2, exponential:0.3, pareto:3, or slow:0.1x3 (a tenth of the workers three "
    "times slower); join several with +.",
)
@_figure("--mtbf", "seconds", "T", "Mean time between failures of one task, such as 24h.  [default: never]")
@_figure("--restart-time", "seconds", "T", "Time to restart a failed task.  [default: 30s]")
@_figure("--snapshot-interval", "seconds", "T", "Time between snapshots.  [default: 60s]")
@click.option(
    "--workers",
    default="1,2,4,8,16,32,64",
    metavar="N,N,…",
    help="Numbers of workers to plan for; 1,2,…,1024 doubles.",
)
@click.option(
    "--rules",
    default="all-reduce,sync,backup,async,bounded",
    metavar="RULE,…",
    help="Rules to compare, of all-reduce, sync, backup, async, overlap, bounded.",
)
@click.option("--backup", default=0.05, metavar="N", help="Number of backup workers; below 1, their share.")
@click.option("--staleness", default=4, metavar="K", help="Bounded staleness: steps a worker may be ahead.")
@click.option("--servers", type=int, metavar="P", help="Parameter servers.  [default: as many as worthwhile]")
@click.option("--max-servers", default=64, metavar="P", help="Largest number of parameter servers to try.")
@click.option(
    "--collective", type=click.Choice(["ring", "tree"]), help="All-reduce algorithm.  [default: ring]"
)
@click.option("--seed", default=0, metavar="N", help="Seed of the simulation's random numbers.")
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
    **figures: Any,
) -> None:
    """Plan the capacity of a job by simulating workers and parameter servers.

    The plan shows, for every number of workers and every rule: how many parameter servers are worthwhile (the fewest
    within 5 % of the best), steps and examples per second, the efficiency of a worker relative to one by itself, how
    stale gradients are, and what is busiest. Nothing is started, except with --measure.
    """
    from rich.console import Console

    from stratagem.tools.launch.output import table_console
    from stratagem.tools.planning.capacity import make_plan
    from stratagem.tools.planning.job_profile import FailureModel
    from stratagem.tools.planning.plan_report import advise, plain_plan, plan_table
    from stratagem.tools.planning.rule_models import RuleChoice
    from stratagem.tools.planning.stragglers import Stragglers

    failures = {"mtbf": mtbf, "restart_time": restart_time, "snapshot_interval": snapshot_interval}
    options = {
        **{name: value for name, value in figures.items() if value is not None},
        "stragglers": Stragglers.parse(stragglers),
        "failures": FailureModel(**{name: value for name, value in failures.items() if value is not None}),
    }
    choices = [RuleChoice(name.strip(), backup, staleness) for name in rules.split(",")]
    counts = _counts(workers)
    profile = _profile(step_time, model_size, measure, options)
    with Console(stderr=True).status("simulating") as status:
        rows = make_plan(
            profile,
            choices,
            counts,
            servers=servers,
            most_servers=max_servers,
            seed=seed,
            report_progress=lambda count, rule: status.update(f"simulating {count} workers, {rule}"),
        )
    if as_json:
        click.echo(json.dumps(plain_plan(profile, rows), indent=2))
        return
    console = table_console()
    console.print(_summary(profile), highlight=False)
    console.print(plan_table(rows))
    for sentence in advise(rows):
        console.print(sentence, highlight=False)


def _counts(text: str) -> list[int]:
    """Parse the numbers of workers; `…` or `...` continues by doubling."""
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


def _profile(
    step_time: float | None, model_size: float | None, measure: bool, options: dict[str, Any]
) -> "JobProfile":
    """Return the profile of the job: the options, and measured or usual figures for the rest."""
    from stratagem.tools.planning.job_profile import JobProfile

    if model_size is None:
        raise LaunchError("give the model's size, such as --model-size 100MB or --model-size 25Mparams")
    if measure:
        measured = _measure(model_size, options.get("batch", 32))
        if step_time is not None:
            options = {**options, "step_time": step_time}
        return replace(measured, **options)
    if step_time is None:
        raise LaunchError("give a worker's time for one gradient, such as --step-time 50ms, or --measure")
    return JobProfile(step_time=step_time, model_bytes=model_size, **options)


def _measure(model_size: float, batch: int) -> "JobProfile":
    """Measure this machine with a short job."""
    from stratagem.tools import planning
    from stratagem.tools.planning.job_profile import MachineTimes

    script = Path(planning.__file__).with_name("measuring_job.py")
    with tempfile.TemporaryDirectory(prefix="stratagem-plan-") as directory:
        result = Path(directory) / "measured.json"
        command = [sys.executable, "-m", "stratagem", "run", "--ps", "1", "--workers", "1", str(script)]
        # The output of tasks goes to stderr: standard output is for the plan.
        completed = subprocess.run(
            [*command, str(result), str(int(model_size)), str(batch)], stdout=sys.stderr
        )
        if completed.returncode != 0:
            raise LaunchError(
                "the job that measures this machine failed, as shown above; give --step-time and the other figures instead"
            )
        return MachineTimes.read(result).profile()


def _summary(profile: "JobProfile") -> str:
    """Return the figures that a plan starts from, in one line."""
    from stratagem.tools.planning.units import show_bytes, show_seconds

    figures = [
        f"step {show_seconds(profile.step_time)}",
        f"model {show_bytes(profile.model_bytes)}",
        f"link {show_bytes(profile.bandwidth)}/s, {show_seconds(profile.latency)}",
        f"update {show_seconds(profile.update_per_byte * profile.model_bytes)}",
        f"request {show_seconds(profile.request_time)}",
        f"stragglers {profile.stragglers}",
    ]
    return " · ".join(figures)
