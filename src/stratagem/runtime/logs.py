"""Our log lines on standard error, for a user who asks for them with STRATAGEM_LOG and has set up no logging."""

import logging
import sys

from stratagem import environment

_logger = logging.getLogger("stratagem")


def show_logs() -> None:
    """Show lines of the level that STRATAGEM_LOG names; changes nothing where it is not set, or logging is set up."""
    level = environment.log_level()
    if level is None or _logger.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    _logger.addHandler(handler)
    _logger.setLevel(level)
    _logger.propagate = False
