"""`stratagem status`: what every task of a cluster is doing, as a table or as JSON."""

import json
import sys
import time
from typing import Any

import click
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.table import Column, Table

from stratagem import environment
from stratagem.tools.launch.running_jobs import find_job, running_jobs
from stratagem.tools.launch.wide_console import wide_console

REFRESH_SECONDS = 1.0
ANSWER_SECONDS = 3.0


_EXAMPLE = """\b
Example:
  stratagem status sg://127.0.0.1:2222 --json"""


@click.command(epilog=_EXAMPLE)
@click.argument("target", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print once, as JSON.")
@click.option("--once", is_flag=True, help="Print once; in a terminal the table refreshes until Ctrl-C.")
def status(target: str | None, as_json: bool, once: bool) -> None:
    """Show the tasks of the cluster that the server at TARGET (sg://host:port) belongs to.

    Without TARGET, that is the job of yours that `stratagem run` runs on this machine. Of such jobs the secret is found; of
    others STRATAGEM_SECRET or STRATAGEM_SECRET_FILE tell it.
    """
    from stratagem.runtime import Session

    job = None if target is not None and environment.has_secret() else find_job(target, running_jobs())
    server = target or (job.target if job is not None else "")
    secret = job.secret if job is not None and not environment.has_secret() else None
    with Session(server, secret, timeout=ANSWER_SECONDS) as session:
        if as_json:
            click.echo(json.dumps(session.status(), indent=2, ensure_ascii=False))
        elif once or not sys.stdout.isatty():
            wide_console().print(_tables(session.status(), {}))
        else:
            _watch(session)


def _watch(session: Any) -> None:
    earlier: dict[str, Any] = {}
    with Live(refresh_per_second=4) as live:
        while True:
            now = session.status()
            live.update(_tables(now, earlier))
            earlier = now
            time.sleep(REFRESH_SECONDS)  # the pace of a display, not a wait for something


def _tables(tasks: dict[str, Any], earlier: dict[str, Any]) -> Group:
    overview = Table(
        Column("task", no_wrap=True),
        "process",
        "devices",
        "up",
        "calls/s",
        "in",
        "out",
        "connections",
        "programs",
        "last error",
    )
    variables = Table("variable", "dtype", "shape", "size", "device")
    rows = Table("table", "dtype", "dim", "rows", "size", "not admitted", "expired", "task")
    models = Table(
        "model", "update rule", "global step", "workers", "staleness", "dropped", "last snapshot", "last loss"
    )
    for task, said in tasks.items():
        if "error" in said:
            overview.add_row(task, "", "[red]unreachable[/red]", *[""] * 6, escape(said["error"]))
            continue
        overview.add_row(
            task,
            str(said["process"]),
            ", ".join(name.rpartition("device:")[2] for name in said["devices"]),
            f"{said['seconds']:.0f} s",
            f"{_rate(said, earlier.get(task)):.0f}",
            _size(said["bytes_in"]),
            _size(said["bytes_out"]),
            str(said["connections"]),
            str(said["programs"]["size"]),
            escape(said["last_error"] or ""),
        )
        served = said.get("parameters", {})
        for name, model in served.items():
            if "global_step" in model:  # the one server that leads tells of all
                models.add_row(
                    escape(name),
                    escape(model["rule"]),
                    str(model["global_step"]),
                    escape(", ".join(model["active"])),
                    _histogram(model["staleness"]),
                    str(sum(model["dropped"].values())),
                    "none" if model["last_cut"] is None else f"step {model['last_cut']}",
                    _loss(model["last_loss"]),
                )
            for table in model["tables"]:
                rows.add_row(
                    escape(table["name"]),
                    table["dtype"],
                    str(table["dim"]),
                    f"{table['rows']:,}",
                    _size(table["nbytes"]),
                    f"{table['waiting']:,}",
                    f"{table['expired']:,}",
                    task,
                )
        parts = [variable for model in served.values() for variable in model["variables"]]
        for variable in [*said["variables"], *parts]:
            shape = "×".join(map(str, variable["shape"])) or "scalar"
            variables.add_row(
                escape(variable["name"]),
                variable["dtype"],
                shape,
                _size(variable["bytes"]),
                variable["device"],
            )
    return Group(overview, *(table for table in (models, variables, rows) if table.row_count))


def _loss(loss: dict[str, int] | None) -> str:
    """What going back to a snapshot cost: `12 updates, from step 30 to 18`."""
    return "none" if loss is None else f"{loss['updates']} updates, from step {loss['from']} to {loss['to']}"


def _histogram(counts: dict[str, int]) -> str:
    """How many pushes were so many steps stale: `0: 90 %, 1: 10 %`."""
    total = sum(counts.values())
    return ", ".join(f"{steps}: {100 * count / total:.0f} %" for steps, count in counts.items())


def _rate(said: dict[str, Any], earlier: dict[str, Any] | None) -> float:
    """Calls per second since the last look, or since the start."""
    calls, seconds = sum(said["calls"].values()), said["seconds"]
    if earlier is not None and earlier.get("incarnation") == said["incarnation"]:
        calls -= sum(earlier["calls"].values())
        seconds -= earlier["seconds"]
    return float(calls / seconds) if seconds > 0 else 0.0


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
