"""Our log lines on standard error, for a user who asks for them with STRATAGEM_LOG and has set up no logging.

Uncaught exceptions that are told in a few lines, where a traceback would say nothing more: somebody else has failed.
"""

import logging
import sys
import sysconfig
import traceback
from pathlib import Path
from types import TracebackType

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


_log = logging.getLogger("stratagem")
_PACKAGE = Path(__file__).parents[1]
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_short: list[type[BaseException]] = []


def report_briefly(kind: type[BaseException]) -> None:
    """Have Python tell of an uncaught exception of this kind in two lines: what it says, and where the user's code was.

    With STRATAGEM_LOG=debug, or in an interactive session, the whole traceback is shown as ever. How the process ends
    stays the same.

    Example:
        >>> report_briefly(WorkerLost)
        >>> raise WorkerLost("/job:worker/task:1 is lost: …")
        stratagem.errors.WorkerLost: /job:worker/task:1 is lost: …
          in train.py, line 12: state, metrics = step(state, batch)
    """
    if not _short:
        _install()
    if kind not in _short:
        _short.append(kind)


def _install() -> None:
    before = sys.excepthook

    def tell(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:  # `sys.last_exc` is set by then
        is_wanted_whole = hasattr(sys, "ps1") or _log.isEnabledFor(logging.DEBUG)
        if is_wanted_whole or not isinstance(error, tuple(_short)):
            before(kind, error, trace)
        else:
            sys.stderr.write("\n".join(summary(error)) + "\n")

    sys.excepthook = tell


def summary(error: BaseException) -> list[str]:
    """What an exception says, and the innermost line of the script that it came from."""
    said = "".join(traceback.format_exception_only(error)).rstrip()
    places = [place for place in traceback.extract_tb(error.__traceback__) if not _is_library(place.filename)]
    if not places:
        return [said]
    return [said, f"  in {places[-1].filename}, line {places[-1].lineno}: {places[-1].line}"]


def _is_library(file: str) -> bool:
    return Path(file).is_relative_to(_PACKAGE) or file.startswith(_LIBRARIES)
