"""Rounds of a drill as rows of the table: an error in one round is its problem, and the next round begins."""

import time
import unittest
from collections.abc import Callable

from drills.table import Outcome

_LONGEST = 2000
"""Characters of each task's log that are told with a problem: the first line, and the last ones."""


def attempt(drill: str, checked: str, run: Callable[[], None]) -> Outcome:
    """Run one round, which raises if something is wrong.

    Args:
        drill: What is broken.
        checked: What the round checks.
        run: The round.
    """
    began = time.monotonic()
    problem = not_run = None
    try:
        run()
    except unittest.SkipTest as error:
        not_run = str(error)
    except Exception as error:  # noqa: BLE001  it is told in the table, and the other drills still count
        notes = map(_shortened, getattr(error, "__notes__", ()))
        problem = "\n".join([f"{type(error).__name__}: {error}", *notes])
    return Outcome(drill, time.monotonic() - began, problem, checked, not_run)


def _shortened(note: str) -> str:
    first, _, rest = note.partition("\n")
    return note if len(rest) <= _LONGEST else f"{first}\n…{rest[-_LONGEST:]}"
