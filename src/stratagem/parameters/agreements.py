"""Which values all workers look at together where they are not in step: those of one moment, kept under a label. Pure.

The first who asks under a label decides; who asks later gets what was kept. Labels of the end of a `fit` are decided when
every worker has come to that end, or has gone.
"""

from collections.abc import Iterable
from typing import TypeAlias

Label: TypeAlias = tuple[int, int]
"""Which fit, and which epoch of it."""
END = 2**31 - 1
"""In place of an epoch: after the last one."""


class Agreements:
    """What has been agreed upon about one model: the newest label counts, and stands for older ones too.

    Attributes:
        kept: The label of the values that are kept, if there are some.
    """

    def __init__(self) -> None:
        self.kept: Label | None = None
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

    def is_kept(self, label: Label) -> bool:
        """Whether there are values under this label, or a newer one."""
        return self.kept is not None and self.kept >= label

    def forget(self) -> None:
        """The servers have gone back: what was kept is not theirs any more."""
        self.kept = None
