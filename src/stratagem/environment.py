"""The one module that reads environment variables.

The rest of the package asks here. Functions take the mapping to read from, so that tests and resolvers
can pass their own; `None` means this process's environment.
"""

import logging
import os
from collections.abc import Mapping

RUN_ID = "STRATAGEM_RUN"
"""Names the run; every process that `stratagem run` starts carries it."""
GENERATION = "STRATAGEM_GENERATION"
"""How often this task has been restarted: 0 at first."""
GRACE = "STRATAGEM_GRACE"
"""Seconds that SIGTERM leaves all tasks at once: a server goes on serving for workers that save meanwhile."""
LISTEN_FD = "STRATAGEM_LISTEN_FD"
"""Descriptor of the bound socket that the launcher handed to this task."""
LISTEN_HOST = "STRATAGEM_LISTEN_HOST"
"""Where this task listens, if not at its own address in the cluster's list: `0.0.0.0` is every network of its host."""
LOG_LEVEL = "STRATAGEM_LOG"
"""Level of the `stratagem` logger: debug, info, warning or error."""
SECRET = "STRATAGEM_SECRET"
"""The cluster's secret itself."""
SECRET_FILE = "STRATAGEM_SECRET_FILE"
"""A file with the cluster's secret; white space around it does not count."""
TLS_CA, TLS_CERT, TLS_KEY = "STRATAGEM_TLS_CA", "STRATAGEM_TLS_CERT", "STRATAGEM_TLS_KEY"
"""PEM files for TLS between hosts: the authority, this task's certificate, its key."""
SNAPSHOT_DIR = "STRATAGEM_SNAPSHOT_DIR"
"""Where the parameter servers of a run keep their cuts; the launcher makes it."""
SHARED_MEMORY = "STRATAGEM_SHM"
"""`off` keeps tensors out of shared memory, also between tasks on one host."""
PIN = "STRATAGEM_PIN"
"""`off` lets every worker compute on all cores of its host, also beside other workers."""
KERAS_BACKEND = "KERAS_BACKEND"
"""What Keras computes with; Keras reads it when it is first imported."""
_OFF = {"off", "0", "false", "no"}


def current(environ: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """The given mapping, or this process's environment."""
    return os.environ if environ is None else environ


def run_id(environ: Mapping[str, str] | None = None) -> str | None:
    """The run of `stratagem run` that this process belongs to, if it belongs to one."""
    return current(environ).get(RUN_ID)


def generation(environ: Mapping[str, str] | None = None) -> int:
    """How often this task has been restarted; 0 outside `stratagem run`."""
    return int(current(environ).get(GENERATION, "0"))


def grace(environ: Mapping[str, str] | None = None) -> float:
    """How many seconds after SIGTERM whoever started this task ends it; 0 if that is not known."""
    return float(current(environ).get(GRACE, "0"))


def listen_fd(environ: Mapping[str, str] | None = None) -> int | None:
    """Descriptor of the socket that the launcher bound for this task, if there is one."""
    value = current(environ).get(LISTEN_FD)
    return None if value is None else int(value)


def listen_host(environ: Mapping[str, str] | None = None) -> str | None:
    """The host or address that the user wants this task to listen at; `None` leaves it to the cluster's list."""
    return current(environ).get(LISTEN_HOST) or None


def no_colour(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the user asked for output without colours (NO_COLOR, as everywhere)."""
    return bool(current(environ).get("NO_COLOR"))


def secret(environ: Mapping[str, str] | None = None) -> str | None:
    """The cluster's secret, if a variable holds it."""
    return current(environ).get(SECRET)


def secret_file(environ: Mapping[str, str] | None = None) -> str | None:
    """The file with the cluster's secret, if a variable names it."""
    return current(environ).get(SECRET_FILE)


def has_secret(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the variable or the file of the cluster's secret is set."""
    return not {SECRET, SECRET_FILE}.isdisjoint(current(environ))


def runtime_dir(environ: Mapping[str, str] | None = None) -> str | None:
    """The directory for files of this user's session (XDG_RUNTIME_DIR), if there is one."""
    return current(environ).get("XDG_RUNTIME_DIR") or None


def tls_files(environ: Mapping[str, str] | None = None) -> tuple[str | None, str | None, str | None]:
    """Paths of the authority, the certificate and the key for TLS; `None` for those not set."""
    values = current(environ)
    return values.get(TLS_CA) or None, values.get(TLS_CERT) or None, values.get(TLS_KEY) or None


def shared_memory(environ: Mapping[str, str] | None = None) -> bool:
    """Whether tasks on one host may exchange tensors through shared memory."""
    return current(environ).get(SHARED_MEMORY, "").lower() not in _OFF


def pins_cores(environ: Mapping[str, str] | None = None) -> bool:
    """Whether workers that share a host keep to cores of their own."""
    return current(environ).get(PIN, "").lower() not in _OFF


def log_level(environ: Mapping[str, str] | None = None) -> int | None:
    """The level of our log lines that STRATAGEM_LOG names; `None` if it names none."""
    return logging.getLevelNamesMapping().get(current(environ).get(LOG_LEVEL, "").upper())


def snapshot_dir(environ: Mapping[str, str] | None = None) -> str | None:
    """The directory that the launcher made for this run's cuts, if there is one."""
    return current(environ).get(SNAPSHOT_DIR) or None


def choose_jax_for_keras() -> None:
    """Have Keras compute with JAX if it is imported later, unless the user has chosen what it computes with."""
    os.environ.setdefault(KERAS_BACKEND, "jax")


def set_variables(values: Mapping[str, str]) -> None:
    """Set variables of this process, for libraries that read them when they start, and for its children."""
    os.environ.update(values)
