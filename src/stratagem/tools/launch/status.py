"""`stratagem status`: the state of every task of a cluster, as tables or as JSON."""

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
from stratagem.tools.launch.output import table_console
from stratagem.tools.launch.running_jobs import find_job, running_jobs

REFRESH_SECONDS = 1.0
ANSWER_SECONDS = 3.0
_EXAMPLE = """\b
Example:
  stratagem status sg://127.0.0.1:2222 --json"""


@click.command(epilog=_EXAMPLE)
@click.argument("target", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print once, as JSON.")
@click.option(
    "--once", is_flag=True, help="Print once. Without it, tables in a terminal refresh until Ctrl-C."
)
def status(target: str | None, as_json: bool, once: bool) -> None:
    """Show the tasks of the cluster to which the server at TARGET (sg://host:port) belongs.

    Without TARGET, show your job that `stratagem run` runs on this machine. The secrets of such jobs are known; for other
    jobs set STRATAGEM_SECRET or STRATAGEM_SECRET_FILE.
    """
    from stratagem.runtime import Session

    job = None if target is not None and environment.has_secret() else find_job(target, running_jobs())
    server = target or (job.target if job is not None else "")
    secret = job.secret if job is not None and not environment.has_secret() else None
    with Session(server, secret, timeout=ANSWER_SECONDS) as session:
        if as_json:
            click.echo(json.dumps(session.status(), indent=2, ensure_ascii=False))
        elif once or not sys.stdout.isatty():
            table_console().print(status_tables(session.status(), {}))
        else:
            _watch(session)


def _watch(session: Any) -> None:
    earlier: dict[str, Any] = {}
    with Live(refresh_per_second=4) as live:
        while True:
            now = session.status()
            live.update(status_tables(now, earlier))
            earlier = now
            time.sleep(REFRESH_SECONDS)  # the refresh rate, not a wait for an event


def status_tables(tasks: dict[str, Any], earlier: dict[str, Any]) -> Group:
    """Return the statuses of tasks as tables; `earlier` statuses are for rates."""
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
    for task, task_status in tasks.items():
        if "error" in task_status:
            overview.add_row(task, "", "[red]unreachable[/red]", *[""] * 6, escape(task_status["error"]))
            continue
        overview.add_row(
            task,
            str(task_status["process"]),
            ", ".join(name.rpartition("device:")[2] for name in task_status["devices"]),
            f"{task_status['seconds']:.0f} s",
            f"{_rate(task_status, earlier.get(task)):.0f}",
            _size(task_status["bytes_in"]),
            _size(task_status["bytes_out"]),
            str(task_status["connections"]),
            str(task_status["programs"]["size"]),
            escape(task_status["last_error"] or ""),
        )
        hosted = task_status.get("parameters", {})
        for name, model in hosted.items():
            if "global_step" in model:  # server 0 reports for all
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
        shards = [variable for model in hosted.values() for variable in model["variables"]]
        for variable in [*task_status["variables"], *shards]:
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
    """Format the cost of a return to a snapshot: `12 updates, from step 30 to 18`."""
    return "none" if loss is None else f"{loss['updates']} updates, from step {loss['from']} to {loss['to']}"


def _histogram(counts: dict[str, int]) -> str:
    """Format the shares of pushes at each staleness: `0: 90 %, 1: 10 %`."""
    total = sum(counts.values())
    return ", ".join(f"{steps}: {100 * count / total:.0f} %" for steps, count in counts.items())


def _rate(task_status: dict[str, Any], earlier: dict[str, Any] | None) -> float:
    """Return calls per second since the earlier status, or since the start."""
    calls, seconds = sum(task_status["calls"].values()), task_status["seconds"]
    if earlier is not None and earlier.get("incarnation") == task_status["incarnation"]:
        calls -= sum(earlier["calls"].values())
        seconds -= earlier["seconds"]
    return float(calls / seconds) if seconds > 0 else 0.0


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
