"""How fast a training goes and when it will be over; without a clock: whoever asks says what time it is."""

from collections import deque

WINDOW_SECONDS = 10.0
"""Speed is that of the last so many seconds."""


class Pace:
    """Counts steps and examples.

    The first step compiles, so speed is measured from its end on.

    Args:
        began: The time now, in seconds of any clock.
        total: The step that it ends at, if that is known.
        resumed_at: The step that it begins at.

    Attributes:
        steps: How many steps have been taken, those before `resumed_at` included.
        seconds: How long it has taken since `resumed_at`.
        is_over: Whether no more steps will come.

    Example:
        >>> pace = Pace(0.0, total=12)
        >>> for second in (5.0, 6.0, 7.0):
        ...     pace.count(second, examples=100)
        >>> pace.steps_per_second, pace.examples_per_second, pace.seconds_left
        (1.0, 100.0, 9.0)
    """

    def __init__(self, began: float, total: int | None = None, resumed_at: int = 0) -> None:
        self.total = total
        self.resumed_at = resumed_at
        self.steps = resumed_at
        self.seconds = 0.0
        self.is_over = False
        self._began = began
        self._examples = 0
        self._marks: deque[tuple[float, int, int]] = deque()

    def count(self, now: float, examples: int = 0) -> None:
        """One more step has ended, of so many examples."""
        self.steps += 1
        self._examples += examples
        self.seconds = now - self._began
        self._marks.append((now, self.steps, self._examples))
        # The first mark is the one to measure from: the youngest that is old enough, so that two remain.
        while len(self._marks) > 2 and now - self._marks[1][0] >= WINDOW_SECONDS:
            self._marks.popleft()

    @property
    def steps_per_second(self) -> float | None:
        """The speed in steps; `None` until two have ended."""
        return self._per_second(1)

    @property
    def examples_per_second(self) -> float | None:
        """The speed in examples; `None` until two steps have ended, or where no examples are counted."""
        return self._per_second(2) if self._examples else None

    @property
    def seconds_left(self) -> float | None:
        """How long it will take at this speed, if it is known how many steps there are."""
        speed = self.steps_per_second
        if self.total is None or not speed:
            return None
        return max(0, self.total - self.steps) / speed

    def _per_second(self, what: int) -> float | None:
        if len(self._marks) < 2:
            return None
        first, last = self._marks[0], self._marks[-1]
        seconds = last[0] - first[0]
        return (last[what] - first[what]) / seconds if seconds > 0 else None
