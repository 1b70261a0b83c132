"""How old a worker's parameters may become before it computes on them: no older than computing itself makes them.

They come with the answer to a push. Whatever passes between that and the next push is staleness: computing, which is what
asynchronous training is about, but also a slow input, a checkpoint, or a compiler at work.
"""

import time

_LEAST = 0.005
"""Seconds that parameters may always be old: to ask for newer ones takes time, too."""
_FAR_MORE = 10.0
"""A computation that took so many times as long as the one before it was compiled, or stood still."""
_SOME = 0.1


class Age:
    """The age of the parameters at hand, against how long this worker computes on them."""

    def __init__(self) -> None:
        self._came = self._began = time.monotonic()
        self._last: float | None = None

    def begin(self) -> None:
        """Parameters of now have come."""
        self._came = self._began = time.monotonic()

    def is_too_great(self) -> bool:
        """Whether a computation, which begins now, had better ask for newer ones."""
        self._began = time.monotonic()
        return self._began - self._came > max(_LEAST, self._last or 0.0)

    def was_as_ever(self) -> bool:
        """Whether the computation, which has just ended, took about as long as the one before it; the first one did not."""
        seconds, before = time.monotonic() - self._began, self._last
        self._last = seconds
        return before is not None and seconds < _FAR_MORE * before + _SOME
