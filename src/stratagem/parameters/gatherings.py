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
        what: What it is about; all must mean the same.
        parts: Who has brought what.
        keys: By what each calls its part, so that one brought twice is known.
        is_complete: Whether all have brought theirs.
    """

    what: str
    parts: dict[int, Any] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)
    is_complete: bool = False


class Gatherings:
    """Meetings one after the other. Whoever has left is no longer waited for; whoever comes anew is from then on."""

    def __init__(self) -> None:
        self._current = Gathering("")
        self._last = Gathering("")

    def bring(self, worker: int, key: str, what: str, part: Any, expected: Set[int]) -> Gathering:
        """A worker brings its part, perhaps again, not having got the answer.

        Raises:
            StrategyError: The others meet about something else.
        """
        for meeting in (self._last, self._current):
            if meeting.keys.get(worker) == key:
                return meeting
        current = self._current
        if not current.parts:
            current.what = what
        if current.what != what:
            others = ", ".join(map(str, sorted(current.parts)))
            raise StrategyError(
                f"worker {worker} is at {what!r} while worker {others} is at {current.what!r}: all workers must "
                "call reduce, gather and distribute in the same order"
            )
        current.parts[worker], current.keys[worker] = part, key
        self.look(expected)
        return current

    def look(self, expected: Set[int]) -> None:
        """Others are expected now: perhaps all are here."""
        if self._current.parts and expected <= self._current.parts.keys():
            self._current.is_complete = True
            self._last, self._current = self._current, Gathering("")
