"""The one module that reads environment variables.

Functions take the mapping to read from, so that tests and resolvers can pass their own; `None` means this process's
environment.
"""

import logging
import os
from collections.abc import Mapping

RUN_ID = "STRATAGEM_RUN"
"""The name of the run, set in every process that `stratagem run` starts."""
GENERATION = "STRATAGEM_GENERATION"
"""How often this task has been restarted: 0 at first."""
GRACE = "STRATAGEM_GRACE"
"""Seconds between SIGTERM and SIGKILL for all tasks: a server goes on serving for workers that save meanwhile."""
LISTEN_FD = "STRATAGEM_LISTEN_FD"
"""Descriptor of the bound socket that the launcher handed to this task."""
LISTEN_HOST = "STRATAGEM_LISTEN_HOST"
"""Where this task listens, if not at its own address in the cluster's list: `0.0.0.0` means every network of its host."""
LOG_LEVEL = "STRATAGEM_LOG"
"""Level of the `stratagem` logger: debug, info, warning or error."""
SECRET = "STRATAGEM_SECRET"
"""The cluster's secret itself."""
SECRET_FILE = "STRATAGEM_SECRET_FILE"
"""A file with the cluster's secret; white space around it is ignored."""
TLS_CA, TLS_CERT, TLS_KEY = "STRATAGEM_TLS_CA", "STRATAGEM_TLS_CERT", "STRATAGEM_TLS_KEY"
"""PEM files for TLS between hosts: the authority, this task's certificate, its key."""
SNAPSHOT_DIR = "STRATAGEM_SNAPSHOT_DIR"
"""Where the parameter servers of a run keep their snapshots; the launcher makes the directory."""
SHARED_MEMORY = "STRATAGEM_SHM"
"""`off` keeps tensors out of shared memory, even between tasks on one host."""
PIN = "STRATAGEM_PIN"
"""`off` lets every worker compute on all cores of its host, even beside other workers."""
KERAS_BACKEND = "KERAS_BACKEND"
"""The library that Keras computes with; Keras reads it when it is first imported."""
_OFF = {"off", "0", "false", "no"}


def current(environ: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """Return the given mapping, or this process's environment."""
    return os.environ if environ is None else environ


def run_id(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the run of `stratagem run` that this process belongs to, if there is one."""
    return current(environ).get(RUN_ID)


def generation(environ: Mapping[str, str] | None = None) -> int:
    """Return how often this task has been restarted; 0 outside `stratagem run`."""
    return int(current(environ).get(GENERATION, "0"))


def grace(environ: Mapping[str, str] | None = None) -> float:
    """Return the seconds between SIGTERM and the end of this task by its launcher; 0 if that is not known."""
    return float(current(environ).get(GRACE, "0"))


def listen_fd(environ: Mapping[str, str] | None = None) -> int | None:
    """Return the descriptor of the socket that the launcher bound for this task, if there is one."""
    value = current(environ).get(LISTEN_FD)
    return None if value is None else int(value)


def listen_host(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the host or address that the user wants this task to listen at; `None` leaves it to the cluster's list."""
    return current(environ).get(LISTEN_HOST) or None


def no_colour(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether the user asked for output without colours (NO_COLOR)."""
    return bool(current(environ).get("NO_COLOR"))


def secret(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the cluster's secret, if a variable holds it."""
    return current(environ).get(SECRET)


def secret_file(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the file with the cluster's secret, if a variable names it."""
    return current(environ).get(SECRET_FILE)


def has_secret(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether the variable for the cluster's secret, or the one for its file, is set."""
    return not {SECRET, SECRET_FILE}.isdisjoint(current(environ))


def runtime_dir(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the directory for files of this user's session (XDG_RUNTIME_DIR), if there is one."""
    return current(environ).get("XDG_RUNTIME_DIR") or None


def tls_files(environ: Mapping[str, str] | None = None) -> tuple[str | None, str | None, str | None]:
    """Return the paths of the authority, the certificate and the key for TLS; `None` for those not set."""
    values = current(environ)
    return values.get(TLS_CA) or None, values.get(TLS_CERT) or None, values.get(TLS_KEY) or None


def shared_memory(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether tasks on one host may exchange tensors through shared memory."""
    return current(environ).get(SHARED_MEMORY, "").lower() not in _OFF


def pins_cores(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether workers that share a host each keep to their own cores."""
    return current(environ).get(PIN, "").lower() not in _OFF


def log_level(environ: Mapping[str, str] | None = None) -> int | None:
    """Return the log level that STRATAGEM_LOG names; `None` if it names none."""
    return logging.getLevelNamesMapping().get(current(environ).get(LOG_LEVEL, "").upper())


def snapshot_dir(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the directory that the launcher made for this run's snapshots, if there is one."""
    return current(environ).get(SNAPSHOT_DIR) or None


def choose_jax_for_keras() -> None:
    """Make Keras compute with JAX if it is imported later, unless the user has chosen another library."""
    os.environ.setdefault(KERAS_BACKEND, "jax")


def set_variables(values: Mapping[str, str]) -> None:
    """Set variables of this process, for libraries that read them when they start, and for its children."""
    os.environ.update(values)
