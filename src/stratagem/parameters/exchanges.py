"""Things that workers leave with server 0 for each other: arrays to gather, and values that all of them evaluate. Pure."""

from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from stratagem.errors import StrategyError

Label: TypeAlias = tuple[int, int]
"""The number of a fit, and of an epoch in it."""
END = 2**31 - 1
"""In place of an epoch: after the last one."""


@dataclass
class Gather:
    """One array of every worker."""

    what: str  # what the workers call it; all must mean the same
    parts: dict[int, Any] = field(default_factory=dict)  # the array of each worker
    # How each worker names its array, so that one sent twice is known.
    keys: dict[int, str] = field(default_factory=dict)
    is_complete: bool = False  # whether all have brought theirs


class Gathers:
    """Gathers, one after the other. One that is under way waits for those who take part now."""

    def __init__(self) -> None:
        self._current = Gather("")
        self._last = Gather("")

    @property
    def waiting(self) -> Set[int]:
        """The workers that have brought their arrays, and wait for the others."""
        return self._current.parts.keys()

    def bring(self, worker: int, key: str, what: str, part: Any, expected: Set[int]) -> Gather:
        """Take the array of a worker, which may send it again because it did not get the answer.

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


class Agreements:
    """The values of one model that all workers evaluate where they are not in step: those of one moment, under a label.

    The first who asks under a label decides; who asks later gets the same values. Labels of the end of a `fit` are decided
    when every worker has come to that end, or has gone. So a worker that is late still finds the values of the last end,
    however far the others have got in their next fit. Kept are the newest epoch, and the newest end of a fit.
    """

    def __init__(self) -> None:
        self._labels: list[Label] = []
        self._ended: dict[int, int] = {}

    def end(self, worker: int, fit: int) -> None:
        """Record that a worker has come to the end of a fit."""
        self._ended[worker] = fit

    def awaited(self, label: Label, expected: Iterable[int]) -> list[int]:
        """Return the workers that have to come to the end of a fit before its last values can be agreed upon."""
        fit, epoch = label
        if self.is_kept(label) or epoch != END:
            return []
        return sorted(worker for worker in expected if self._ended.get(worker, 0) < fit)

    def keep(self, label: Label) -> None:
        """Record that servers keep values under this label."""
        self._labels = beside(self._labels, label)

    def is_kept(self, label: Label) -> bool:
        """Return whether servers keep values that stand for this label."""
        return standing_for(self._labels, label) is not None

    def forget(self) -> None:
        """Forget all values: the servers have gone back, and what they kept is not theirs any more."""
        self._labels = []


def beside(labels: Iterable[Label], label: Label) -> list[Label]:
    """Return the labels that stay when values are kept under a new one, which is the last of them."""
    is_end = label[1] == END
    return [label] if is_end else [*(each for each in labels if each[1] == END), label]


def standing_for(labels: Iterable[Label], label: Label) -> Label | None:
    """Return the oldest of the labels that is not older than a label; only another end stands for the end of a fit."""
    is_end = label[1] == END
    return min((each for each in labels if each >= label and (each[1] == END or not is_end)), default=None)
