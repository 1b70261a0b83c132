"""`stratagem bench`: which strategy suits this machine, measured by training under each for a few seconds."""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

import click

from stratagem import environment
from stratagem.devices import visible_gpus
from stratagem.errors import LaunchError
from stratagem.tools.bench.contenders import CHOICES, Contender, WorkerSettings, line_up
from stratagem.tools.bench.results import Measurement, Result, WorkerReport, advise
from stratagem.tools.launch.job_shape import require_linux
from stratagem.tools.launch.output import table_console
from stratagem.tools.launch.quiet_run import interruptible, run_job_quietly
from stratagem.tools.launch.tasks import EXIT_FAILED

_START_SECONDS = 120.0
"""Time for a contender to start its processes and compile, in addition to its training."""
_EXAMPLE = """\b
Examples:
  stratagem bench
  stratagem bench --workers 1,2,4 --slow-worker 3 --plot bench.html
  stratagem bench --layers 784,4096,4096,10 --strategies multi-worker,async --rounds 5"""


_POSITIVE = click.FloatRange(min=0, min_open=True)
_AT_LEAST_ONE = click.IntRange(min=1)
_FILE = click.Path(path_type=Path)


@click.command(epilog=_EXAMPLE)
@click.option("--layers", default="784,500,10", metavar="N,N,…", help="Widths, from inputs to classes.")
@click.option("--batch", default=100, metavar="N", type=_AT_LEAST_ONE, help="Batch size of each worker.")
@click.option("--seconds", default=3.0, metavar="S", type=_POSITIVE, help="Training time of each contender.")
@click.option(
    "--rounds",
    default=1,
    metavar="R",
    type=_AT_LEAST_ONE,
    help="Number of turns of each contender; the table shows medians.",
)
@click.option("--workers", metavar="N,N,…", help="Numbers of workers, at most one per core.  [default: 1,2]")
@click.option(
    "--devices",
    metavar="N,N,…",
    help="Numbers of devices of one process: GPUs, or virtual CPU devices.  [default: --workers without 1]",
)
@click.option(
    "--strategies",
    default=",".join(CHOICES),
    metavar="NAME,…",
    show_default="all",
    help=f"Strategies to compare, of {', '.join(CHOICES)}.",
)
@click.option(
    "--slow-worker",
    default=1.0,
    metavar="FACTOR",
    type=click.FloatRange(min=1),
    help="Slow the last of several workers down by this factor.",
)
@click.option(
    "--deadline",
    metavar="S",
    type=_POSITIVE,
    help=f"Time limit of each contender, with its start.  [default: {_START_SECONDS:g} plus 4 times --seconds]",
)
@click.option("--plot", metavar="FILE", type=_FILE, help="Draw curves into FILE.png or FILE.html.")
@click.option("--json", "json_file", metavar="FILE", type=_FILE, help="Write all figures as JSON.")
def bench(
    layers: str,
    batch: int,
    seconds: float,
    rounds: int,
    workers: str | None,
    devices: str | None,
    strategies: str,
    slow_worker: float,
    deadline: float | None,
    plot: Path | None,
    json_file: Path | None,
) -> None:
    """Train one model under every strategy on this machine, and recommend one.

    The contenders are one device, several devices of one process, and several processes; in step by all-reduce, or with
    parameter servers, which update in step, asynchronously or with bounded staleness. Each trains the same dense model on the
    same examples for the same time, in processes of its own, one contender after the other. Efficiency is the speed of one
    worker relative to one device by itself.
    """
    from stratagem.tools.bench.report import check_plot, plain_results, results_table, write_plot

    require_linux()
    if plot is not None:
        check_plot(plot)
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise LaunchError(f"--json {json_file}: there is no directory {json_file.absolute().parent}")
    cores = len(os.sched_getaffinity(0))
    gpus = visible_gpus(environment.current())
    counts = _counts(workers, cores, len(gpus))
    contenders = line_up(
        [name.strip() for name in strategies.split(",")], counts, _device_counts(devices, counts, len(gpus))
    )
    sizes = layer_sizes(layers)
    settings = WorkerSettings("", sizes, batch, seconds, pause=0.0, directory="")
    runner = _Runner(settings, slow_worker, deadline or _START_SECONDS + 4 * seconds, has_gpus=bool(gpus))
    results = _race(runner, contenders, rounds)
    advice = advise(results, cores)

    slow = f", one worker {slow_worker:g} times slower" if slow_worker > 1 else ""
    where = f"{len(gpus)} GPUs" if gpus else f"{cores} cores"
    title = f"{'-'.join(map(str, sizes))}, batch {batch} per worker, {seconds:g} s each, {where}{slow}"
    console = table_console()
    console.print(title, highlight=False)
    console.print(results_table(results, seconds))
    for sentence in advice:
        console.print(sentence, highlight=False, soft_wrap=not console.is_terminal)
    if plot is not None:
        write_plot(plot, results, title, advice)
        click.echo(f"The curves are in {plot}", err=True)
    if json_file is not None:
        options = {
            "layers": sizes,
            "batch": batch,
            "seconds": seconds,
            "rounds": rounds,
            "slow_worker": slow_worker,
        }
        machine = {"cores": cores, "gpus": len(gpus)}
        json_file.write_text(json.dumps(plain_results(results, options, machine, advice), indent=2))
    _exit_with_failures(results)


def _counts(workers: str | None, cores: int, gpus: int) -> tuple[int, ...]:
    """Return the numbers of workers; each needs a core of its own, or a GPU where there are any."""
    most = gpus or cores
    reason = f"this machine has {most} {'GPU' if gpus else 'core'}{'s' * (most > 1)}"
    if workers is None:
        return tuple(range(1, min(most, 2) + 1))
    return whole_numbers("--workers", workers, most, reason)


def _device_counts(devices: str | None, workers: Sequence[int], gpus: int) -> tuple[int, ...]:
    if devices is None:
        return tuple(count for count in workers if count > 1)
    return whole_numbers("--devices", devices, gpus or None, f"this machine has {gpus} GPUs")


def whole_numbers(option: str, text: str, most: int | None = None, reason: str = "") -> tuple[int, ...]:
    """Parse a list of rising whole numbers, such as `1,2,4`, of at most `most` for a `reason`; `option` is for the error."""
    numbers = _numbers(option, text, "1,2,4")
    if list(numbers) != sorted(set(numbers)):
        raise LaunchError(f"{option} {text}: give each number once, in rising order, such as 1,2,4")
    if most is not None and numbers[-1] > most:
        raise LaunchError(f"{option} {text}: {numbers[-1]} is too many, since {reason}; give at most {most}")
    return numbers


def layer_sizes(text: str) -> tuple[int, ...]:
    """Parse the widths of a model's layers, such as `784,500,10`."""
    sizes = _numbers("--layers", text, "784,500,10")
    if len(sizes) < 2 or sizes[-1] < 2:
        raise LaunchError(
            f"--layers {text}: give the inputs, any hidden layers, and at least 2 classes, such as 784,500,10"
        )
    return sizes


def _numbers(option: str, text: str, example: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not word.isdecimal() or int(word) < 1:
            raise LaunchError(
                f"{option} {text}: {word!r} is not a whole number of at least 1; give a list such as {example}"
            )
    return tuple(map(int, words))


@dataclass(frozen=True)
class _Runner:
    """Runs contenders."""

    settings: WorkerSettings  # the settings that their workers share
    slow_worker: float  # how many times slower the last worker is
    deadline: float  # seconds for each contender
    has_gpus: bool  # whether to divide GPUs among the workers

    def run(self, contender: Contender, step_seconds: float | None) -> Measurement:
        """Let one contender train. Raise LaunchError with the end of its output if it fails.

        The pause of a slow worker is computed from `step_seconds`, the time of a step on one device.
        """
        with tempfile.TemporaryDirectory(prefix="stratagem-bench-") as directory:
            pause = (self.slow_worker - 1) * (step_seconds or 0.0)
            settings = replace(self.settings, strategy=contender.strategy, pause=pause, directory=directory)
            run_job_quietly(self._words(contender, settings), Path(directory), self.deadline)
            reports = [
                WorkerReport.read(Path(directory) / f"report-{index}") for index in range(contender.workers)
            ]
        return Measurement.of(contender, reports)

    def _words(self, contender: Contender, settings: WorkerSettings) -> list[str]:
        counts = ["--ps", str(contender.kind.servers), "--workers", str(contender.workers)]
        if contender.devices > 1 or self.has_gpus:
            counts += ["--devices-per-worker", str(contender.devices)]
        script = str(files("stratagem.tools.bench").joinpath("worker.py"))
        return [*counts, script, settings.to_json()]


def _race(runner: _Runner, contenders: Sequence[Contender], rounds: int) -> list[Result]:
    """Let every contender train in turn, for a number of rounds; a contender that has failed is skipped."""
    from rich.console import Console

    results = [Result(contender) for contender in contenders]
    console = Console(stderr=True)
    with interruptible(), console.status("") as status:
        for number in range(rounds):
            round_text = f", round {number + 1} of {rounds}" if rounds > 1 else ""
            for place, result in enumerate(results):
                text = f"{result.contender.name} ({place + 1} of {len(results)}{round_text})"
                status.update(text)
                if not console.is_terminal:  # where no status line can be drawn
                    console.print(text, highlight=False)
                if result.failure is None:
                    _take_turn(runner, result, results[0])
    return results


def _take_turn(runner: _Runner, result: Result, one_device: Result) -> None:
    step_seconds = 1 / one_device.steps_per_second if one_device.rounds else None
    try:
        result.rounds.append(runner.run(result.contender, step_seconds))
    except LaunchError as error:
        result.failure = str(error)


def _exit_with_failures(results: Sequence[Result]) -> None:
    failed = [result for result in results if result.failure is not None]
    for result in failed:
        click.echo(f"stratagem: {result.contender.name} failed: {result.failure}", err=True)
    if failed:
        sys.exit(EXIT_FAILED)
