"""What the workers of a model leave with server 0 for one another: metrics, how their data begin, the chief's notes."""

import threading
import time

import numpy as np

from stratagem.errors import StrategyError
from stratagem.parameters.authority import Decision
from stratagem.parameters.machines import Push
from stratagem.parameters.protocol import Reading

_REMEMBERED = 16


class Bulletin:
    """The board of one model.

    Args:
        workers: The tasks that train it.
    """

    def __init__(self, workers: tuple[str, ...]) -> None:
        self._workers = workers
        self._changed = threading.Condition()
        self._metrics: dict[tuple[int, str, int], dict[str, Reading]] = {}
        self._digests: dict[int, tuple[str, bytes]] = {}
        self._notes: dict[str, bytes] = {}

    def add_metrics(self, push: Push, metrics: dict[str, Reading]) -> None:
        """Take the metrics of a push down: of those that make one update, each worker is told the means."""
        with self._changed:
            self._metrics[push[:3]] = metrics
            while len(self._metrics) > _REMEMBERED * len(self._workers):
                del self._metrics[next(iter(self._metrics))]

    def means(self, decision: Decision) -> dict[str, Reading]:
        """The means of the metrics over the rows of all pushes of an update; nothing where none were told."""
        if not self._metrics:
            return {}
        with self._changed:
            told = [(push.rows, self._metrics.get(push[:3], {})) for push in decision.pushes if push.rows]
        rows = sum(count for count, _ in told)
        names = told[0][1] if told else {}
        return {
            name: np.asarray(
                sum(count * np.asarray(metrics.get(name, 0.0)) for count, metrics in told) / rows
            ).tolist()
            for name in names
        }

    def check_same(self, worker: int, number: int, digest: bytes) -> None:
        """Raise unless a worker's data begin as those of the first one who told.

        Raises:
            StrategyError: They differ.
        """
        task = self._workers[worker]
        with self._changed:
            first, expected = self._digests.setdefault(number, (task, digest))
        if expected != digest:
            raise StrategyError(f"the first batch of {task} is not that of {first}")

    def note(self, key: str, note: bytes) -> None:
        """The chief leaves a note for the other workers."""
        with self._changed:
            self._notes[key] = note
            self._changed.notify_all()

    def noted(self, key: str, end: float) -> bytes | None:
        """What the chief has noted under a key; `None` if there is nothing by the end."""
        with self._changed:
            while key not in self._notes and self._changed.wait(max(0.0, end - time.monotonic())):
                pass
            return self._notes.get(key)
