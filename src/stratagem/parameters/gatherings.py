"""What workers show each other by way of server 0: each brings an array, and all get those of all. Pure.

The caller holds a lock and waits; here is only who has brought what.
"""

from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

from stratagem.errors import StrategyError


@dataclass
class Gathering:
    """One such meeting.

    Attributes:
        number: Which one it is.
        what: What it is about; all must mean the same.
        parts: Who has brought what.
        is_complete: Whether all have.
    """

    number: int
    what: str
    parts: dict[int, Any] = field(default_factory=dict)
    is_complete: bool = False


class Gatherings:
    """Meetings one after the other. Whoever has left, or comes anew, is no longer waited for, or is from then on."""

    def __init__(self) -> None:
        self._number = 0
        self._current: Gathering | None = None
        self._last: Gathering | None = None

    def bring(self, worker: int, what: str, part: Any, expected: Set[int]) -> Gathering:
        """A worker brings its part.

        Raises:
            StrategyError: The others meet about something else.
        """
        current = self._current
        if current is None:
            self._number += 1
            current = self._current = Gathering(self._number, what)
        if current.what != what:
            others = ", ".join(map(str, sorted(current.parts)))
            raise StrategyError(
                f"worker {worker} is at {what!r} while worker {others} is at {current.what!r}: all workers must "
                "call reduce, gather and distribute in the same order"
            )
        current.parts[worker] = part
        self.look(expected)
        return current

    def find(self, number: int) -> Gathering | None:
        """A meeting that a worker has brought its part to before."""
        for each in (self._current, self._last):
            if each is not None and each.number == number:
                return each
        return None

    def look(self, expected: Set[int]) -> None:
        """Others are expected now: perhaps all are here."""
        if self._current is not None and self._current.parts and expected <= self._current.parts.keys():
            self._current.is_complete = True
            self._last, self._current = self._current, None
