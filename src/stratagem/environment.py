"""The one module that reads environment variables.

The rest of the package asks here. Functions take the mapping to read from, so that tests and resolvers
can pass their own; `None` means this process's environment.
"""

import os
from collections.abc import Mapping

RUN_ID = "STRATAGEM_RUN"
"""Names the run; every process that `stratagem run` starts carries it."""
GENERATION = "STRATAGEM_GENERATION"
"""How often this task has been restarted: 0 at first."""
LISTEN_FD = "STRATAGEM_LISTEN_FD"
"""Descriptor of the bound socket that the launcher handed to this task."""
LOG_LEVEL = "STRATAGEM_LOG"
"""Level of the `stratagem` logger: debug, info, warning or error."""


def current(environ: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """The given mapping, or this process's environment."""
    return os.environ if environ is None else environ


def generation(environ: Mapping[str, str] | None = None) -> int:
    """How often this task has been restarted; 0 outside `stratagem run`."""
    return int(current(environ).get(GENERATION, "0"))


def listen_fd(environ: Mapping[str, str] | None = None) -> int | None:
    """Descriptor of the socket that the launcher bound for this task, if there is one."""
    value = current(environ).get(LISTEN_FD)
    return None if value is None else int(value)
