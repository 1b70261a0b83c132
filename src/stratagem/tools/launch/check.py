"""`stratagem check`: whether strategies train correctly on these devices, and how fast; `stratagem devices`: the devices."""

import json
import platform
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from stratagem import environment
from stratagem.cluster import resolve_cluster
from stratagem.errors import LaunchError
from stratagem.tools.launch.job_shape import require_linux
from stratagem.tools.launch.output import table_console
from stratagem.tools.launch.quiet_run import failure_text, interruptible, run_job_quietly, run_with_deadline
from stratagem.tools.launch.tasks import EXIT_FAILED, describe_exit

if TYPE_CHECKING:
    from stratagem.tools.checking import Case, TrialResult

_START_SECONDS = 180.0
"""Time for a case to start its processes and compile, in addition to its rounds."""
_VIRTUAL_DEVICES = 4
"""Devices on a machine without accelerators: two for each of two processes."""
_EXAMPLE = """\b
Examples:
  stratagem check                    on this machine
  srun stratagem check               by all tasks of a job together, whose cluster the environment defines"""


@dataclass(frozen=True)
class _Devices:
    """The devices of a machine."""

    count: int  # number of devices
    kind: str  # their kinds, as JAX names them
    are_virtual: bool  # whether they are CPU devices that stand in for accelerators


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def devices(as_json: bool) -> None:
    """List the devices of this machine."""
    from rich.table import Table

    from stratagem.devices import list_devices

    local_devices = list_devices()
    if as_json:
        values = [{"name": each.name, "description": each.description} for each in local_devices]
        click.echo(json.dumps(values, indent=2))
        return
    table = Table("device", "description")
    for each in local_devices:
        table.add_row(each.name, each.description)
    table_console().print(table)


@click.command(epilog=_EXAMPLE)
@click.option(
    "--seconds",
    default=0.5,
    metavar="S",
    type=click.FloatRange(min=0, min_open=True),
    help="Duration of each of the five rounds of a race.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    help="Check only strategies whose names contain this. May be given several times.",
)
def check(seconds: float, only: tuple[str, ...]) -> None:
    """Check that the strategies train on these devices as one device does, and how fast.

    Each strategy trains a small model on batches that do not all divide evenly, and is compared with one device; then it
    races bare JAX over the same devices. On a single machine, every strategy that differs on its devices is checked, each in
    processes of its own; without accelerators, four virtual CPU devices stand in. In a job (TF_CONFIG, Slurm, …), run this
    command as every task: all tasks are checked together, and the chief reports. The exit code is 1 if any strategy differs
    or fails.
    """
    if resolve_cluster() is not None:
        outcomes = _check_job(seconds)
    else:
        require_linux()
        machine = _find_devices()
        click.echo(_heading(machine))
        outcomes = _check_machine(machine, seconds, only)
    if outcomes is None:
        return  # the chief reports
    table_console().print(_table(outcomes))
    different = [case.name for case, result in outcomes if isinstance(result, str) or not result.agrees]
    for case, result in outcomes:
        if isinstance(result, str):
            click.echo(f"stratagem: {case.name} failed: {result}", err=True)
    if different:
        click.echo(f"stratagem: not as on one device: {', '.join(different)}", err=True)
        sys.exit(EXIT_FAILED)
    click.echo("All train as one device does.")


_Outcomes: TypeAlias = "list[tuple[Case, TrialResult | str]]"
"""The result of each case, or the error of one that failed."""


def _check_job(seconds: float) -> "_Outcomes | None":
    """Check one strategy by all tasks of a job together. Return the outcome on the chief, `None` on the others."""
    from stratagem.tools.checking import MULTI_WORKER, TPU, Case, try_case

    name = TPU if "TPU_WORKER_HOSTNAMES" in environment.current() else MULTI_WORKER
    is_chief, result = try_case(name, seconds)
    if not is_chief:
        return None
    click.echo(_heading(_Devices(result.replicas, result.kinds, are_virtual=False)))
    return [(Case(name), result)]


def _check_machine(machine: _Devices, seconds: float, only: tuple[str, ...]) -> _Outcomes:
    from stratagem.tools.checking import ONE_DEVICE, cases

    outcomes: _Outcomes = []
    selected = [
        case
        for case in cases(machine.count, "TPU" in machine.kind)
        if case.name == ONE_DEVICE or not only or any(text.lower() in case.name.lower() for text in only)
    ]
    with interruptible():
        for number, case in enumerate(selected, start=1):
            click.echo(f"{case.name} ({number} of {len(selected)})", err=True)
            try:
                outcomes.append((case, _run(case, machine, seconds)))
            except LaunchError as error:
                outcomes.append((case, str(error)))
    return outcomes


def _run(case: "Case", machine: _Devices, seconds: float) -> "TrialResult":
    from stratagem.tools.checking import ROUNDS, TrialResult

    with tempfile.TemporaryDirectory(prefix="stratagem-check-") as directory:
        report = Path(directory) / "result.json"
        counts = ["--workers", str(case.workers)]
        if machine.count > 1:
            counts += ["--devices-per-worker", str(case.devices)]
        script = str(files("stratagem.tools").joinpath("checking.py"))
        words = [*counts, script, case.name, str(seconds), str(report)]
        run_job_quietly(words, Path(directory), _START_SECONDS + 4 * ROUNDS * seconds)
        return TrialResult(**json.loads(report.read_text()))


def _find_devices() -> _Devices:
    """Return the devices that JAX finds, by another process: this one must leave accelerators to others."""
    with tempfile.TemporaryDirectory(prefix="stratagem-check-") as directory:
        log = Path(directory) / "log"
        command = [sys.executable, "-P", "-c", _LIST_DEVICES]
        code = run_with_deadline(command, environment.current(), log, _START_SECONDS)
        if code != 0:
            raise LaunchError(
                f"JAX could not list its devices: it ended with {describe_exit(code)}\n{failure_text(log)}"
            )
        kinds: list[list[Any]] = json.loads(log.read_text().splitlines()[-1])
    accelerators = [kind for kind, is_cpu in kinds if not is_cpu]
    if accelerators:
        return _Devices(len(accelerators), ", ".join(sorted(set(accelerators))), are_virtual=False)
    return _Devices(_VIRTUAL_DEVICES, "cpu", are_virtual=True)


_LIST_DEVICES = """
import json
from stratagem.devices import list_devices

kinds = [(each.device.device_kind, each.spec.device_type == "CPU") for each in list_devices()]
print(json.dumps(kinds))
"""


def _heading(machine: _Devices) -> str:
    """Return the versions and devices of a check."""
    programs = ", ".join(f"{name} {version(name)}" for name in ("stratagem", "jax", "jaxlib"))
    text = f"{machine.count} × {machine.kind}"
    if machine.are_virtual:
        text = f"no accelerator; {machine.count} virtual CPU devices stand in: figures are of this CPU, not of accelerators"
    return f"{programs}, Python {platform.python_version()}, {platform.system()} {platform.machine()}\n{text}"


def _table(outcomes: _Outcomes) -> Any:
    from rich.table import Table

    table = Table(
        "strategy", "replicas", "largest difference", "", "examples/s", "× bare JAX over the same devices"
    )
    for case, result in outcomes:
        if isinstance(result, str):
            table.add_row(case.name, "", "", "failed", "", "")
            continue
        table.add_row(
            case.name,
            str(result.replicas),
            f"{result.difference:.1e}",
            "the same" if result.agrees else "DIFFERENT",
            f"{result.examples_per_second:,.0f}",
            "–" if result.of_bare_jax is None else f"{result.of_bare_jax:.2f}",
        )
    return table
