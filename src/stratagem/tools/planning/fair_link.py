"""One way of a host's link: messages of one size, among which it is shared equally at every moment."""

from collections import deque

_INSTANT = 1e-12
"""Seconds for a message that takes no time: progress is measured against it."""


class FairLink:
    """A link, and what is under way through it.

    A message goes no faster than its own sender, or receiver, lets it, and no faster than its share of the link.
    All have the same size and so, at any moment, the same speed: they leave in the order in which they came. Progress is
    kept once for all of them, so neither coming nor leaving has to look at the others.

    Args:
        alone: Seconds that a message takes with nothing else under way.
        share: Seconds that the link itself needs for it.

    Attributes:
        next_leave: When the next message leaves, if none comes before; infinite if there is none.
    """

    __slots__ = ("_alone", "_now", "_progress", "_share", "_under_way", "next_leave")

    def __init__(self, alone: float, share: float) -> None:
        self._alone = max(alone, _INSTANT)
        self._share = share
        self._now = 0.0
        self._progress = 0.0
        self._under_way: deque[tuple[float, int]] = deque()
        self.next_leave = float("inf")

    def come(self, now: float, worker: int) -> None:
        """A worker's message sets out."""
        under_way = self._under_way
        if under_way:
            self._progress += (now - self._now) / max(self._alone, len(under_way) * self._share)
        else:
            self._progress = 0.0
        self._now = now
        under_way.append((self._progress + 1.0, worker))
        left = max(0.0, under_way[0][0] - self._progress)
        self.next_leave = now + left * max(self._alone, len(under_way) * self._share)

    def leave(self) -> int:
        """The next message has arrived: whose it is."""
        under_way = self._under_way
        self._now = self.next_leave
        self._progress, worker = under_way.popleft()
        if under_way:
            left = under_way[0][0] - self._progress
            self.next_leave = self._now + left * max(self._alone, len(under_way) * self._share)
        else:
            self.next_leave = float("inf")
        return worker
