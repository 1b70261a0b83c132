"""`stratagem check`: whether strategies do on these devices what they promise, and how fast."""

import json
import platform
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stratagem import environment
from stratagem.cluster import resolve_cluster
from stratagem.errors import DeadlineExceeded, LaunchError
from stratagem.tools.checking.cases import ALONE, TOGETHER, TPU, Case, cases
from stratagem.tools.launch.deadline import last_words, run_with_deadline
from stratagem.tools.launch.interrupts import interruptible
from stratagem.tools.launch.task import EXIT_FAILED

if TYPE_CHECKING:
    from stratagem.tools.checking.trial import Found

_START_SECONDS = 180.0
"""For a case to start its processes and compile, beside the time that its rounds take."""
_VIRTUAL = 4
"""Devices of a machine without accelerators: two for each of two processes."""
_EXAMPLE = """\b
Examples:
  stratagem check                    on this machine
  srun stratagem check               all tasks of a job together: the cluster is that of the environment"""


@dataclass(frozen=True)
class _Devices:
    """What a machine has to train with.

    Attributes:
        count: How many devices.
        kind: What they are, in the words of JAX.
        are_virtual: Whether they are CPU devices that stand in for others.
    """

    count: int
    kind: str
    are_virtual: bool


@click.command(epilog=_EXAMPLE)
@click.option(
    "--seconds",
    default=0.5,
    metavar="S",
    type=click.FloatRange(min=0, min_open=True),
    help="How long each of five rounds of a race takes.  [default: 0.5]",
)
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    help="Only the cases with this in their names; may be given again.",
)
def check(seconds: float, only: tuple[str, ...]) -> None:
    """Try the strategies on these devices: that they train as one device does, and how fast.

    Each strategy trains a small model on batches that do not all divide evenly, and is compared with one device; then it
    races plain JAX over the same devices. On a machine by itself every strategy that its devices can tell apart is tried, in
    processes of its own; without accelerators four virtual CPU devices stand in. As a task of a job (TF_CONFIG, Slurm, …) all
    tasks are tried together, and the chief reports. The exit code is 1 if any strategy differs or fails.
    """
    from stratagem.tools.launch.wide_console import wide_console

    if resolve_cluster() is not None:
        outcomes = _of_job(seconds)
    else:
        if sys.platform != "linux":
            raise LaunchError(f"a local cluster needs Linux (prctl and /proc); this is {sys.platform}")
        devices = _devices()
        click.echo(_heading(devices))
        outcomes = _of_machine(devices, seconds, only)
    if outcomes is None:
        return  # the chief reports
    console = wide_console()
    console.print(_table(outcomes))
    wrong = [case.name for case, found in outcomes if isinstance(found, str) or not found.agrees]
    for case, found in outcomes:
        if isinstance(found, str):
            click.echo(f"stratagem: {case.name} failed: {found}", err=True)
    if wrong:
        click.echo(f"stratagem: not as on one device: {', '.join(wrong)}", err=True)
        sys.exit(EXIT_FAILED)
    click.echo("All train as one device does.")


_Outcomes = list[tuple[Case, "Found | str"]]
"""What was found of each case; the last words of one that failed."""


def _of_job(seconds: float) -> _Outcomes | None:
    """What all tasks of a job find together; `None` where this is not the chief."""
    from stratagem.tools.checking.task import try_case

    name = TPU if "TPU_WORKER_HOSTNAMES" in environment.current() else TOGETHER
    is_chief, found = try_case(name, seconds)
    if not is_chief:
        return None
    click.echo(_heading(_Devices(found.replicas, found.kinds, are_virtual=False)))
    return [(Case(name), found)]


def _of_machine(devices: _Devices, seconds: float, only: tuple[str, ...]) -> _Outcomes:
    outcomes: _Outcomes = []
    wanted = [
        case
        for case in cases(devices.count, "TPU" in devices.kind)
        if case.name == ALONE or not only or any(part.lower() in case.name.lower() for part in only)
    ]
    with interruptible():
        for place, case in enumerate(wanted):
            click.echo(f"{case.name} ({place + 1} of {len(wanted)})", err=True)
            try:
                outcomes.append((case, _run(case, devices, seconds)))
            except LaunchError as error:
                outcomes.append((case, str(error)))
    return outcomes


def _run(case: Case, devices: _Devices, seconds: float) -> "Found":
    from stratagem.tools.checking.trial import ROUNDS, Found

    with tempfile.TemporaryDirectory(prefix="stratagem-check-") as directory:
        log, report = Path(directory) / "log", Path(directory) / "found.json"
        counts = ["--workers", str(case.workers)]
        if devices.count > 1:
            counts += ["--devices-per-worker", str(case.devices)]
        task = str(files("stratagem.tools.checking").joinpath("task.py"))
        command = [
            sys.executable,
            "-P",
            "-m",
            "stratagem",
            "run",
            *counts,
            task,
            case.name,
            str(seconds),
            str(report),
        ]
        environ = {**environment.current(), "TMPDIR": directory}
        try:
            code = run_with_deadline(command, environ, log, _START_SECONDS + 4 * ROUNDS * seconds)
        except DeadlineExceeded as error:
            raise LaunchError(f"{error}\n{last_words(log)}") from error
        if code != 0:
            raise LaunchError(f"it ended with {code}\n{last_words(log)}")
        return Found(**json.loads(report.read_text()))


def _devices() -> _Devices:
    """What JAX finds, asked in a process of its own: this one must leave accelerators to others."""
    with tempfile.TemporaryDirectory(prefix="stratagem-check-") as directory:
        log = Path(directory) / "log"
        command = [sys.executable, "-P", "-c", _ASK]
        code = run_with_deadline(command, environment.current(), log, _START_SECONDS)
        if code != 0:
            raise LaunchError(
                f"JAX could not be asked for its devices: it ended with {code}\n{last_words(log)}"
            )
        found: list[list[Any]] = json.loads(log.read_text().splitlines()[-1])
    accelerators = [kind for kind, is_cpu in found if not is_cpu]
    if accelerators:
        return _Devices(len(accelerators), ", ".join(sorted(set(accelerators))), are_virtual=False)
    return _Devices(_VIRTUAL, "cpu", are_virtual=True)


_ASK = """
import json
from stratagem.devices import list_devices

found = [(each.device.device_kind, each.spec.device_type == "CPU") for each in list_devices()]
print(json.dumps(found))
"""


def _heading(devices: _Devices) -> str:
    """On what it was tried: the first thing that anybody asks of a report."""
    programs = ", ".join(f"{name} {version(name)}" for name in ("stratagem", "jax", "jaxlib"))
    what = f"{devices.count} × {devices.kind}"
    if devices.are_virtual:
        what = f"no accelerator; {devices.count} virtual CPU devices stand in: figures are of this CPU, not of accelerators"
    return f"{programs}, Python {platform.python_version()}, {platform.system()} {platform.machine()}\n{what}"


def _table(outcomes: _Outcomes) -> Any:
    from rich.table import Table

    table = Table(
        "strategy", "replicas", "largest difference", "", "examples/s", "× bare JAX over the same devices"
    )
    for case, found in outcomes:
        if isinstance(found, str):
            table.add_row(case.name, "", "", "failed", "", "")
            continue
        table.add_row(
            case.name,
            str(found.replicas),
            f"{found.difference:.1e}",
            "the same" if found.agrees else "DIFFERENT",
            f"{found.examples_per_second:,.0f}",
            "–" if found.of_bare_jax is None else f"{found.of_bare_jax:.2f}",
        )
    return table
