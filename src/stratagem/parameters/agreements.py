"""Which values all workers look at together where they are not in step: those of one moment, kept under a label. Pure.

The first who asks under a label decides; who asks later gets what was kept. Labels of the end of a `fit` are decided when
every worker has come to that end, or has gone. So a worker that is late still finds the values of the last end, however
far the others have got in their next fit.
"""

from collections.abc import Iterable
from typing import TypeAlias

Label: TypeAlias = tuple[int, int]
"""Which fit, and which epoch of it."""
END = 2**31 - 1
"""In place of an epoch: after the last one."""


class Agreements:
    """What has been agreed upon about one model: the newest epoch, and the newest end of a fit."""

    def __init__(self) -> None:
        self._kept: list[Label] = []
        self._ended: dict[int, int] = {}

    def end(self, worker: int, fit: int) -> None:
        """A worker has come to the end of a fit."""
        self._ended[worker] = fit

    def awaited(self, label: Label, expected: Iterable[int]) -> list[int]:
        """The workers that have to come to the end of a fit before its last values can be agreed upon."""
        fit, epoch = label
        if self.is_kept(label) or epoch != END:
            return []
        return sorted(worker for worker in expected if self._ended.get(worker, 0) < fit)

    def keep(self, label: Label) -> None:
        """There are values under this label."""
        self._kept = beside(self._kept, label)

    def is_kept(self, label: Label) -> bool:
        """Whether there are values that stand for this label."""
        return standing_for(self._kept, label) is not None

    def forget(self) -> None:
        """The servers have gone back: what was kept is not theirs any more."""
        self._kept = []


def beside(kept: Iterable[Label], label: Label) -> list[Label]:
    """The labels whose values are kept on when those of a new one are."""
    is_end = label[1] == END
    return [label] if is_end else [*(each for each in kept if each[1] == END), label]


def standing_for(kept: Iterable[Label], label: Label) -> Label | None:
    """The oldest of the labels that is not older than a label; the end of a fit, only another end stands for."""
    is_end = label[1] == END
    return min((each for each in kept if each >= label and (each[1] == END or not is_end)), default=None)
