"""Threads that call the other workers at the same time, one for each of them."""

import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue

Job = Callable[[], None]


class Callers:
    """A thread per worker to call; each does one job after the other.

    They are daemons: a call that hangs in one of them must not keep a process that has failed from ending.
    Jobs raise nothing.
    """

    def __init__(self, workers: Iterable[int], name: str) -> None:
        self._queues: dict[int, SimpleQueue[Job | None]] = {worker: SimpleQueue() for worker in workers}
        for worker, queue in self._queues.items():
            threading.Thread(target=_work, args=(queue,), name=f"{name}-{worker}", daemon=True).start()

    def submit(self, worker: int, job: Job) -> None:
        """Let the worker's thread do this next."""
        self._queues[worker].put(job)

    def close(self) -> None:
        """Let every thread end when its jobs are done."""
        for queue in self._queues.values():
            queue.put(None)


def _work(queue: "SimpleQueue[Job | None]") -> None:
    while (job := queue.get()) is not None:
        job()
        del job  # or its arrays would live until the next one comes
