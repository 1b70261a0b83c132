"""When an evaluator evaluates, waits, stops or gives up: what it sees in, what to do out. No clock, no file."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Evaluate:
    """Evaluate the newest checkpoint, now."""


@dataclass(frozen=True)
class Wait:
    """Look again, after so many seconds at the latest."""

    seconds: float
    what_for: str


@dataclass(frozen=True)
class Stop:
    """Training is over, and all that is worth it is evaluated."""


@dataclass(frozen=True)
class GiveUp:
    """There has been no sign of the training for too long."""

    why: str


Decision = Evaluate | Wait | Stop | GiveUp


@dataclass(frozen=True)
class Seen:
    """What an evaluator finds in the directory of a model.

    Attributes:
        latest: The step of the newest checkpoint, if there is one.
        is_finished: Whether the chief has said that training is over.
        signs: Changes whenever the training writes anything.
    """

    latest: int | None = None
    is_finished: bool = False
    signs: object = None


class Watch:
    """The rules of an evaluator.

    Args:
        began: The time now, in seconds of any clock.
        start_delay: Seconds before the first evaluation.
        throttle: Seconds from evaluation to evaluation.
        patience: Seconds without any sign of the training, after which to give up.
        max_steps: The step that training ends at, if that is known.

    Example:
        >>> watch = Watch(0.0, start_delay=0, throttle=60, patience=600, max_steps=100)
        >>> watch.decide(1.0, Seen(latest=50))
        Evaluate()
        >>> watch.evaluated(1.0, 50)
        >>> watch.decide(2.0, Seen(latest=70))
        Wait(seconds=59.0, what_for='the checkpoint of step 70 to be due (throttle_secs)')
        >>> watch.decide(3.0, Seen(latest=100))  # the last one does not wait
        Evaluate()
        >>> watch.evaluated(3.0, 100)
        >>> watch.decide(4.0, Seen(latest=100))
        Stop()
    """

    def __init__(
        self, began: float, start_delay: float, throttle: float, patience: float, max_steps: int | None
    ) -> None:
        self._start_at = began + start_delay
        self._throttle = throttle
        self._patience = patience
        self._max_steps = max_steps
        self._due_at = self._start_at
        self._evaluated: int | None = None
        self._signs: object = None
        self._sign_at = began

    def evaluated(self, now: float, step: int) -> None:
        """An evaluation of this step was begun."""
        self._evaluated = step
        self._due_at = now + self._throttle

    def decide(self, now: float, seen: Seen) -> Decision:
        """What to do."""
        found = (seen.latest, seen.signs)
        if found != self._signs:
            self._signs, self._sign_at = found, now
        latest, done = seen.latest, self._max_steps
        is_over = seen.is_finished or (latest is not None and done is not None and latest >= done)
        if latest is not None and latest != self._evaluated:
            if is_over or now >= self._due_at:
                return Evaluate()
            why = "start_delay_secs" if now < self._start_at else "throttle_secs"
            return Wait(self._due_at - now, f"the checkpoint of step {latest} to be due ({why})")
        if is_over:
            return Stop()
        left = self._sign_at + self._patience - now
        what = "the first checkpoint" if latest is None else f"a checkpoint after that of step {latest}"
        if left <= 0:
            return GiveUp(f"waited for {what}, and nothing was written for {self._patience:g} seconds")
        return Wait(left, what)
