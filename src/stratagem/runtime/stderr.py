"""What a process writes to standard error: our log lines if the user wants them, and some exceptions in two lines."""

import logging
import sys
import sysconfig
import traceback
from pathlib import Path
from types import TracebackType

from stratagem import environment

_log = logging.getLogger("stratagem")
_PACKAGE = Path(__file__).parents[1]
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_brief_kinds: list[type[BaseException]] = []


def show_logs() -> None:
    """Show log lines of the level that STRATAGEM_LOG names, unless it is not set or the user has set up logging."""
    level = environment.log_level()
    if level is None or _log.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    _log.addHandler(handler)
    _log.setLevel(level)
    _log.propagate = False


def report_briefly(kind: type[BaseException]) -> None:
    """Have Python report an uncaught exception of this kind in two lines: its message, and where the user's code was.

    For exceptions whose traceback would say nothing more, because another task has failed. With STRATAGEM_LOG=debug, or in an
    interactive session, the whole traceback is shown as usual. How the process ends stays the same.

    Example:
        >>> report_briefly(WorkerLost)
        >>> raise WorkerLost("/job:worker/task:1 is lost: …")
        stratagem.errors.WorkerLost: /job:worker/task:1 is lost: …
          in train.py, line 12: state, metrics = step(state, batch)
    """
    if not _brief_kinds:
        _install()
    if kind not in _brief_kinds:
        _brief_kinds.append(kind)


def _install() -> None:
    before = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        is_wanted_whole = hasattr(sys, "ps1") or _log.isEnabledFor(logging.DEBUG)
        if is_wanted_whole or not isinstance(error, tuple(_brief_kinds)):
            before(kind, error, trace)
        else:
            sys.stderr.write("\n".join(summary(error)) + "\n")

    sys.excepthook = report


def summary(error: BaseException) -> list[str]:
    """Return an exception's message, and the innermost line of the user's script that it came from."""
    message = "".join(traceback.format_exception_only(error)).rstrip()
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_library(frame.filename)]
    if not frames:
        return [message]
    return [message, f"  in {frames[-1].filename}, line {frames[-1].lineno}: {frames[-1].line}"]


def _is_library(file: str) -> bool:
    return Path(file).is_relative_to(_PACKAGE) or file.startswith(_LIBRARIES)
