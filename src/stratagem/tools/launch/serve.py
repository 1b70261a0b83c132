"""`stratagem serve`: a server for one task, which holds variables and runs what others ship to it."""

import logging
import os
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from stratagem import environment
from stratagem.cluster import resolve_cluster
from stratagem.errors import LaunchError
from stratagem.runtime.exits import DAEMON_WORK
from stratagem.tools.launch.task import EXIT_INTERRUPTED, EXIT_TERMINATED

if TYPE_CHECKING:
    from collections.abc import Callable

    from stratagem.runtime import Server

_LOOK_SECONDS, _LOOKS = 0.25, 4
"""Between two looks at whether workers are connected; how many must find none, since a connection may be made anew."""
_LAST_SECONDS = 3.0
"""Of the grace, for the server's own end."""
_EXAMPLE = """\b
Example:
  stratagem serve --job_name ps --task_index 0 --ps_hosts 127.0.0.1:2222 --worker_hosts 127.0.0.1:2223"""


@click.command(epilog=_EXAMPLE)
@click.option("--job_name", metavar="JOB", help="Job of this task: ps, worker, chief.")
@click.option("--task_index", "--task_id", metavar="I", type=int, help="Index of this task in its job.")
@click.option("--ps_hosts", metavar="HOST:PORT,…", help="Addresses of the parameter servers.")
@click.option("--worker_hosts", metavar="HOST:PORT,…", help="Addresses of the workers.")
@click.option("--chief_hosts", metavar="HOST:PORT", help="Address of the chief, if it is not worker 0.")
@click.option(
    "--secret-file",
    metavar="F",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the cluster's secret.  [default: STRATAGEM_SECRET or STRATAGEM_SECRET_FILE]",
)
@click.option(
    "--insecure", is_flag=True, help="Listen where others can reach it although there is no secret."
)
@click.option(
    "--allow-import",
    "allowed",
    metavar="MODULE",
    multiple=True,
    help="Module whose functions may make datasets here for a single client; may be given several times.",
)
def serve(
    job_name: str | None,
    task_index: int | None,
    ps_hosts: str | None,
    worker_hosts: str | None,
    chief_hosts: str | None,
    secret_file: Path | None,
    insecure: bool,
    allowed: tuple[str, ...],
) -> None:
    """Serve one task of a cluster until the job is done, SIGTERM or Ctrl-C.

    The task is given by these flags or by TF_CONFIG.
    """
    given = {
        "--job_name": job_name,
        "--task_index": task_index,
        "--ps_hosts": ps_hosts,
        "--worker_hosts": worker_hosts,
        "--chief_hosts": chief_hosts,
    }
    config = resolve_cluster([f"{flag}={value}" for flag, value in given.items() if value is not None])
    if config is None:
        raise LaunchError(
            "which task is this to serve? Give --job_name, --task_index and the addresses (--ps_hosts, --worker_hosts), "
            "or set TF_CONFIG"
        )
    _check_importable(allowed)
    # Not 0: who did not ask for it should know that the job was not done.
    signal.signal(signal.SIGTERM, lambda *_: _leave(EXIT_TERMINATED))

    from stratagem.devices import compute_in_calling_thread, share_host
    from stratagem.runtime import Server  # starts JAX: only now is it known that there is something to serve
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
            services=[] if config.job_name == "ps" else [_dataset_service(allowed)],
        ) as server:
            signal.signal(signal.SIGTERM, lambda *_: _leave(0 if server.is_done else EXIT_TERMINATED))
            click.echo(f"{server.task} serves at {server.target}")
            try:
                server.join()
                if environment.run_id() is not None:
                    _stay_for_the_launcher()
            except SystemExit:
                if config.job_name == "ps":
                    _let_workers_save(server)
                sys.exit(0 if server.is_done else EXIT_TERMINATED)
    except SystemExit as end:
        _settle(int(end.code or 0))
        raise
    except KeyboardInterrupt:
        _settle(EXIT_INTERRUPTED)
        raise
    _settle(0)


def _dataset_service(allowed: tuple[str, ...]) -> "Callable[[Server], object]":
    """What lets a single client name datasets; parameter servers need none."""
    from stratagem.classic.coordinator.dataset_service import DatasetService

    return partial(DatasetService, allowed=allowed)


def _check_importable(modules: tuple[str, ...]) -> None:
    """Raise for a module that is not there: better now than when the first closure wants a batch."""
    for module in modules:
        package = module.partition(".")[0]
        if not package.isidentifier() or find_spec(package) is None:
            raise LaunchError(
                f"--allow-import {module}: there is no module {package!r} to import. Install it, or put its directory on "
                "PYTHONPATH"
            )


def _leave(code: int) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not keep the server from closing
    sys.exit(code)


def _let_workers_save(server: "Server") -> None:
    """Serve on as long as workers are connected: all were asked to end at once, and the values that they save are here."""
    end = time.monotonic() + environment.grace() - _LAST_SECONDS
    looks_without = 0
    while looks_without < _LOOKS and time.monotonic() < end and not server.join(_LOOK_SECONDS):
        looks_without = 0 if server.has_workers else looks_without + 1


def _stay_for_the_launcher() -> NoReturn:
    """Serve until `stratagem run` asks for the end, which it does when all workers have ended.

    A worker may be killed after its farewell and before its end. It is then started again, and has to hear from somebody
    that it has finished.
    """
    while True:
        signal.pause()


def _settle(code: int) -> None:
    """End this process here if a program still runs, which cannot be interrupted, nor Python be taken down under it."""
    if DAEMON_WORK.settle():
        return
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
