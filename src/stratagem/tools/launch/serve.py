"""`stratagem serve`: a server for one task, which holds variables and runs the programs that others send to it."""

import logging
import os
import signal
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from stratagem import environment
from stratagem.cluster import resolve_cluster
from stratagem.errors import LaunchError
from stratagem.runtime.exits import DAEMON_WORK
from stratagem.tools.launch.tasks import EXIT_INTERRUPTED, EXIT_TERMINATED

if TYPE_CHECKING:
    from collections.abc import Callable

    from stratagem.runtime import Server

_CHECK_SECONDS, _CHECKS = 0.25, 4
"""The interval of checks for connected workers, and how many in a row must find none, since a worker may reconnect."""
_LAST_SECONDS = 3.0
"""The end of the grace period, for the server's own end."""
_EXAMPLE = """\b
Example:
  stratagem serve --job_name ps --task_index 0 --ps_hosts 127.0.0.1:2222 --worker_hosts 127.0.0.1:2223"""


@click.command(epilog=_EXAMPLE)
@click.option("--job_name", metavar="JOB", help="Job of this task: ps, worker or chief.")
@click.option("--task_index", "--task_id", metavar="I", type=int, help="Index of this task in its job.")
@click.option("--ps_hosts", metavar="HOST:PORT,…", help="Addresses of all parameter servers.")
@click.option("--worker_hosts", metavar="HOST:PORT,…", help="Addresses of all workers.")
@click.option("--chief_hosts", metavar="HOST:PORT", help="Address of the chief, if it is not worker 0.")
@click.option(
    "--secret-file",
    metavar="F",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the secret of the cluster.  [default: STRATAGEM_SECRET or STRATAGEM_SECRET_FILE]",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Listen on addresses that other hosts can reach, although there is no secret.",
)
@click.option(
    "--allow-import",
    "allowed",
    metavar="MODULE",
    multiple=True,
    help="Module that this task may import: a ps task for update rules, a worker of a single client for datasets. May be given "
    "several times.",
)
def serve(
    secret_file: Path | None, insecure: bool, allowed: tuple[str, ...], **flags: str | int | None
) -> None:
    """Serve one task of a cluster until the job is done, or until SIGTERM or Ctrl-C.

    Define the task by these options or by TF_CONFIG.
    """
    config = resolve_cluster([f"--{flag}={value}" for flag, value in flags.items() if value is not None])
    if config is None:
        raise LaunchError(
            "the task to serve is not defined: give --job_name, --task_index and the addresses (--ps_hosts, --worker_hosts), "
            "or set TF_CONFIG"
        )
    _check_importable(allowed)
    # Not 0: whoever did not send SIGTERM should know that the job is not done.
    signal.signal(signal.SIGTERM, lambda *_: _leave(EXIT_TERMINATED))

    from stratagem.devices import compute_in_calling_thread, share_host
    from stratagem.runtime import Server  # starts JAX, so only after the checks above
    from stratagem.runtime.wire.credentials import read_secret_file

    share_host(config)
    compute_in_calling_thread()
    secret = read_secret_file(secret_file, "--secret-file") if secret_file is not None else None
    try:
        with Server(
            config.cluster,
            config.job_name,
            config.task_index,
            secret=secret,
            insecure=insecure,
            services=[] if config.job_name == "ps" else [_dataset_service()],
            allowed_imports=allowed,
        ) as server:
            signal.signal(signal.SIGTERM, lambda *_: _leave(0 if server.is_done else EXIT_TERMINATED))
            click.echo(f"{server.task} serves at {server.target}")
            try:
                server.join()
                if environment.run_id() is not None:
                    _wait_for_launcher()
            except SystemExit:
                if config.job_name == "ps":
                    _let_workers_save(server)
                sys.exit(0 if server.is_done else EXIT_TERMINATED)
    except SystemExit as end:
        _exit_if_busy(int(end.code or 0))
        raise
    except KeyboardInterrupt:
        _exit_if_busy(EXIT_INTERRUPTED)
        raise
    _exit_if_busy(0)


def _dataset_service() -> "Callable[[Server], object]":
    """Return the service with which a single client makes datasets here; parameter servers need none."""
    from stratagem.classic.coordinator.datasets import DatasetService

    return DatasetService


def _check_importable(modules: tuple[str, ...]) -> None:
    """Raise LaunchError for a module that does not exist: now, rather than at the first batch."""
    for module in modules:
        package = module.partition(".")[0]
        if not package.isidentifier() or find_spec(package) is None:
            raise LaunchError(
                f"--allow-import {module}: there is no module {package!r} to import. Install it, or put its directory on "
                "PYTHONPATH"
            )


def _leave(code: int) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second SIGTERM must not keep the server from closing
    sys.exit(code)


def _let_workers_save(server: "Server") -> None:
    """Serve while workers are connected: all tasks were asked to end at the same time, and workers save values of this server."""
    deadline = time.monotonic() + environment.grace() - _LAST_SECONDS
    checks = 0
    while checks < _CHECKS and time.monotonic() < deadline and not server.join(_CHECK_SECONDS):
        checks = 0 if server.has_workers else checks + 1


def _wait_for_launcher() -> NoReturn:
    """Serve until `stratagem run` asks this task to end, which it does when all workers have ended.

    A worker may be killed after its farewell and before its end. It is then restarted, and must learn from a server that it
    has finished.
    """
    while True:
        signal.pause()


def _exit_if_busy(code: int) -> None:
    """Exit here if a program still runs: it cannot be interrupted, and Python cannot be shut down while it runs."""
    if DAEMON_WORK.settle():
        return
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
