"""`stratagem bench`: which strategy suits this machine, found by training under each of them for a few seconds."""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stratagem import environment
from stratagem.devices import visible_gpus
from stratagem.errors import DeadlineExceeded, LaunchError
from stratagem.tools.bench.contenders import CHOICES, Contender, line_up
from stratagem.tools.bench.results import Measurement, Result, WorkerReport
from stratagem.tools.bench.settings import JobSettings, layer_sizes, whole_numbers
from stratagem.tools.launch.deadline import last_words, run_with_deadline
from stratagem.tools.launch.interrupts import interruptible
from stratagem.tools.launch.task import EXIT_FAILED

if TYPE_CHECKING:
    from rich.console import Console

_START_SECONDS = 120.0
"""For a contender to start its processes and compile, before and after its time."""
_EXAMPLE = """\b
Examples:
  stratagem bench
  stratagem bench --workers 1,2,4 --slow-worker 3 --plot bench.html
  stratagem bench --layers 784,4096,4096,10 --strategies multi-worker,async --rounds 5"""


@click.command(epilog=_EXAMPLE)
@click.option(
    "--layers",
    default="784,500,10",
    metavar="N,N,…",
    help="Widths of the model's layers, from inputs to classes.  [default: 784,500,10]",
)
@click.option(
    "--batch",
    default=100,
    metavar="N",
    type=click.IntRange(min=1),
    help="Examples of each worker in each step.  [default: 100]",
)
@click.option(
    "--seconds",
    default=3.0,
    metavar="S",
    type=click.FloatRange(min=0, min_open=True),
    help="How long each contender trains.  [default: 3]",
)
@click.option(
    "--rounds",
    default=1,
    metavar="R",
    type=click.IntRange(min=1),
    help="How often each has its turn; medians are shown.  [default: 1]",
)
@click.option("--workers", metavar="N,N,…", help="Numbers of workers, at most the cores.  [default: 1,2]")
@click.option(
    "--devices",
    metavar="N,N,…",
    help="Numbers of devices of one process: GPUs, or virtual CPU devices.  [default: those of --workers but 1]",
)
@click.option(
    "--strategies",
    default=",".join(CHOICES),
    metavar="NAME,…",
    help=f"Among {', '.join(CHOICES)}.  [default: all]",
)
@click.option(
    "--slow-worker",
    default=1.0,
    metavar="FACTOR",
    type=click.FloatRange(min=1),
    help="Make the last of several workers so many times slower.",
)
@click.option(
    "--deadline",
    metavar="S",
    type=click.FloatRange(min=0, min_open=True),
    help=f"For each contender, start and all.  [default: {_START_SECONDS:g} and 4 times --seconds]",
)
@click.option(
    "--plot",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Draw the curves, into FILE.png or FILE.html.",
)
@click.option(
    "--json", "json_file", metavar="FILE", type=click.Path(path_type=Path), help="Write all figures as JSON."
)
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
    """Train one model under every strategy, on this machine, and say which of them fits.

    One device, several devices of one process and several processes; parameter servers in step, asynchronous and with
    bounded staleness. Each trains the same dense model on the same examples for the same time, in processes of its own,
    one contender after the other. Efficiency is that of one worker against one device by itself.
    """
    from stratagem.tools.bench.advice import advise
    from stratagem.tools.bench.plot import check_plot, write_plot
    from stratagem.tools.bench.report import plain, table
    from stratagem.tools.launch.wide_console import wide_console

    if sys.platform != "linux":
        raise LaunchError(f"a local cluster needs Linux (prctl and /proc); this is {sys.platform}")
    if plot is not None:
        check_plot(plot)
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise LaunchError(f"--json {json_file}: there is no directory {json_file.absolute().parent}")
    cores = len(os.sched_getaffinity(0))
    gpus = visible_gpus(environment.current())
    counts = _counts(workers, cores, len(gpus))
    contenders = line_up(
        [name.strip() for name in strategies.split(",")],
        counts,
        _device_counts(devices, counts, len(gpus)),
    )
    sizes = layer_sizes(layers)
    settings = JobSettings("", sizes, batch, seconds, pause=0.0, directory="")
    runs = _Runs(settings, slow_worker, deadline or _START_SECONDS + 4 * seconds, has_gpus=bool(gpus))
    results = _race(runs, contenders, rounds)
    advice = advise(results, cores)

    slow = f", one worker {slow_worker:g} times slower" if slow_worker > 1 else ""
    where = f"{len(gpus)} GPUs" if gpus else f"{cores} cores"
    title = f"{'-'.join(map(str, sizes))}, batch {batch} per worker, {seconds:g} s each, {where}{slow}"
    console = wide_console()
    console.print(title, highlight=False)
    console.print(table(results, seconds))
    for sentence in advice:
        console.print(sentence, highlight=False, soft_wrap=not console.is_terminal)
    if plot is not None:
        write_plot(plot, results, title, advice)
        click.echo(f"The curves are in {plot}", err=True)
    if json_file is not None:
        asked = {
            "layers": sizes,
            "batch": batch,
            "seconds": seconds,
            "rounds": rounds,
            "slow_worker": slow_worker,
        }
        machine = {"cores": cores, "gpus": len(gpus)}
        json_file.write_text(json.dumps(plain(results, asked, machine, advice), indent=2))
    _tell_failures(results)


def _counts(workers: str | None, cores: int, gpus: int) -> tuple[int, ...]:
    """The numbers of workers; each wants a core of its own, or a GPU where there are any."""
    most = gpus or cores
    what = f"this machine has {most} {'GPU' if gpus else 'core'}{'s' * (most > 1)}"
    if workers is None:
        return tuple(range(1, min(most, 2) + 1))
    return whole_numbers("--workers", workers, most, what)


def _device_counts(devices: str | None, workers: Sequence[int], gpus: int) -> tuple[int, ...]:
    if devices is None:
        return tuple(count for count in workers if count > 1)
    return whole_numbers("--devices", devices, gpus or None, f"this machine has {gpus} GPUs")


@dataclass(frozen=True)
class _Runs:
    """How contenders are run.

    Attributes:
        settings: What their workers are told, but for what differs between them.
        slow_worker: How much slower the last worker is.
        deadline: Seconds for each.
        has_gpus: Whether workers get GPUs dealt out.
    """

    settings: JobSettings
    slow_worker: float
    deadline: float
    has_gpus: bool

    def run(self, contender: Contender, step_seconds: float | None) -> Measurement:
        """Have one contender train.

        Args:
            contender: Who.
            step_seconds: What a step takes one device, from which a slow worker is made.

        Raises:
            LaunchError: It failed; the message has its last words.
        """
        with tempfile.TemporaryDirectory(prefix="stratagem-bench-") as directory:
            pause = (self.slow_worker - 1) * (step_seconds or 0.0)
            told = replace(self.settings, strategy=contender.strategy, pause=pause, directory=directory)
            log = Path(directory) / "log"
            # What a launcher that is killed cannot remove goes with the directory.
            environ = {**environment.current(), "TMPDIR": directory}
            try:
                code = run_with_deadline(self._command(contender, told), environ, log, self.deadline)
            except DeadlineExceeded as error:
                raise LaunchError(f"{error}\n{last_words(log)}") from error
            if code != 0:
                raise LaunchError(f"it ended with {code}\n{last_words(log)}")
            reports = [
                WorkerReport.read(Path(directory) / f"report-{index}") for index in range(contender.workers)
            ]
        return Measurement.of(contender, reports)

    def _command(self, contender: Contender, told: JobSettings) -> list[str]:
        counts = ["--ps", str(contender.kind.servers), "--workers", str(contender.workers)]
        if contender.devices > 1 or self.has_gpus:
            counts += ["--devices-per-worker", str(contender.devices)]
        job = str(files("stratagem.tools.bench").joinpath("job.py"))
        return [sys.executable, "-P", "-m", "stratagem", "run", *counts, job, told.to_json()]


def _race(runs: _Runs, contenders: Sequence[Contender], rounds: int) -> list[Result]:
    """Every contender in turn, so many times; who has failed is out."""
    from rich.console import Console

    results = [Result(contender) for contender in contenders]
    console = Console(stderr=True)
    with interruptible(), console.status("") as status:
        for number in range(rounds):
            of_rounds = f", round {number + 1} of {rounds}" if rounds > 1 else ""
            for place, result in enumerate(results):
                text = f"{result.contender.name} ({place + 1} of {len(results)}{of_rounds})"
                status.update(text)
                _say(console, text)
                if result.failure is None:
                    _take_turn(runs, result, results[0])
    return results


def _take_turn(runs: _Runs, result: Result, one_device: Result) -> None:
    step_seconds = 1 / one_device.steps_per_second if one_device.rounds else None
    try:
        result.rounds.append(runs.run(result.contender, step_seconds))
    except LaunchError as error:
        result.failure = str(error)


def _say(console: "Console", text: str) -> None:
    if not console.is_terminal:  # where a status line cannot be drawn over
        console.print(text, highlight=False)


def _tell_failures(results: Sequence[Result]) -> None:
    failed = [result for result in results if result.failure is not None]
    for result in failed:
        click.echo(f"stratagem: {result.contender.name} failed: {result.failure}", err=True)
    if failed:
        sys.exit(EXIT_FAILED)
