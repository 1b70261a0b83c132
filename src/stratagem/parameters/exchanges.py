"""What workers leave with server 0 for each other: arrays to gather, and metrics. Pure."""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Any, cast

from stratagem.errors import StrategyError
from stratagem.parameters.authority import Decision
from stratagem.parameters.protocol import Reading
from stratagem.parameters.rules import Push

_REMEMBERED = 16


@dataclass
class Gather:
    """One array of every worker.

    Attributes:
        what: What the workers call it; all must mean the same.
        parts: The array of each worker.
        keys: How each worker names its array, so that one sent twice is known.
        is_complete: Whether all have brought theirs.
    """

    what: str
    parts: dict[int, Any] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)
    is_complete: bool = False


class Gathers:
    """Gathers, one after the other. Who has left is no longer waited for; who comes anew is from then on."""

    def __init__(self) -> None:
        self._current = Gather("")
        self._last = Gather("")

    @property
    def waiting(self) -> Set[int]:
        """The workers that have brought their arrays, and wait for the others."""
        return self._current.parts.keys()

    def bring(self, worker: int, key: str, what: str, part: Any, expected: Set[int]) -> Gather:
        """A worker brings its array, perhaps again because it did not get the answer.

        Raises:
            StrategyError: The others gather something else.
        """
        for gather in (self._last, self._current):
            if gather.keys.get(worker) == key:
                return gather
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
        """Complete the current gather if all who are expected now have brought their arrays."""
        if self._current.parts and expected <= self._current.parts.keys():
            self._current.is_complete = True
            self._last, self._current = self._current, Gather("")


class Metrics:
    """The metrics of the newest pushes.

    Args:
        workers: How many workers push.
    """

    def __init__(self, workers: int) -> None:
        self._most = _REMEMBERED * workers
        self._metrics: dict[tuple[int, str, int], dict[str, Reading]] = {}

    def add(self, push: Push, metrics: dict[str, Reading]) -> None:
        """Record the metrics of a push, of which its worker is told the means over all pushes of the update."""
        self._metrics[push[:3]] = metrics
        while len(self._metrics) > self._most:
            del self._metrics[next(iter(self._metrics))]

    def means(self, decision: Decision) -> dict[str, Reading]:
        """The means of the metrics over the rows of all pushes of an update; nothing where none were recorded."""
        if not self._metrics:
            return {}
        metrics = [(push.rows, self._metrics.get(push[:3], {})) for push in decision.pushes if push.rows]
        names = metrics[0][1] if metrics else {}
        return {name: _mean([(rows, each.get(name, 0.0)) for rows, each in metrics]) for name in names}


def _mean(readings: Sequence[tuple[int, Reading]]) -> Reading:
    """The mean of numbers, or of lists of numbers, by rows."""
    length = max((len(reading) for _, reading in readings if isinstance(reading, list)), default=None)
    if length is None:
        total = sum(rows for rows, _ in readings)
        return sum(rows * cast(float, reading) for rows, reading in readings) / total
    lists = [(rows, each if isinstance(each, list) else [each] * length) for rows, each in readings]
    return [_mean([(rows, each[place]) for rows, each in lists]) for place in range(length)]
