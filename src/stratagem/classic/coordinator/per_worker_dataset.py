"""A dataset of which every worker has its own, as the client holds it: a name, and how far it has come is elsewhere."""

import itertools
import re
import secrets
import threading
import weakref
from collections import deque
from collections.abc import Mapping
from typing import Any, NoReturn

from stratagem.classic.coordinator.structure import rebuild_structure
from stratagem.errors import DataError
from stratagem.runtime.remote_function import PerTask, TaskCall, TaskValue
from stratagem.runtime.wire import Peer

ELEMENT = "element"
"""The kind of a program's input that is part of a worker's next batch."""
OPEN, CLOSE = "dataset.open", "dataset.close"
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


class _Tally:
    """The iterators that workers hold for this client, and those that nobody here holds any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._prefix = secrets.token_hex(8)
        self._open: dict[str, set[str]] = {}
        self._dropped: deque[str] = deque()
        self._unused: set[str] = set()

    def name(self) -> str:
        return f"{self._prefix}-{next(self._numbers)}"

    def opened(self, task: str, name: str) -> None:
        with self._lock:
            self._open.setdefault(task, set()).add(name)

    def drop(self, name: str) -> None:
        """Nobody holds it any more. May be called in the middle of anything, by the collector: it takes no lock."""
        self._dropped.append(name)

    def unused(self, task: str) -> list[str]:
        """The iterators on a task that nobody holds, for it to be told of."""
        with self._lock:
            while self._dropped:
                self._unused.add(self._dropped.popleft())
            found = self._open.get(task, set()) & self._unused
            self._open.get(task, set()).difference_update(found)
        return sorted(found)

    def all(self, task: str) -> list[str]:
        """All iterators on a task."""
        with self._lock:
            return sorted(self._open.pop(task, set()))


class PerWorkerDataset:
    """A dataset that each worker makes for itself; `ClusterCoordinator.create_per_worker_dataset` gives it.

    Args:
        function: Who makes it, on a worker: `module:function`.
        places: For each worker its number; the function may ask for it.

    Example:
        >>> batches = iter(coordinator.create_per_worker_dataset("my_data:digits"))
        >>> coordinator.schedule(step, args=(w, batches))
    """

    def __init__(self, function: str, places: Mapping[str, int]) -> None:
        if not isinstance(function, str) or not _NAME.fullmatch(function):
            raise DataError(
                f"a dataset is named by who makes it on a worker, such as 'my_data:training_batches'; got {function!r}. "
                "No function travels to the workers: they import it (stratagem serve --allow-import my_data)"
            )
        self.function = function
        self._places = dict(places)
        self._tally = _Tally()

    def __iter__(self) -> "PerWorkerIterator":
        """A new pass over it, on every worker; it begins where it is first used."""
        iterator = PerWorkerIterator(self, self._tally.name())
        weakref.finalize(iterator, self._tally.drop, iterator.name).atexit = False
        return iterator

    def open(self, name: str, call: TaskCall, task: str) -> Any:
        """Have a worker begin a pass, unless it has; its next batch, as a tree of `TaskValue`."""
        place = self._places[task]
        fields = {"iterator": name, "function": self.function, "place": place, "places": len(self._places)}
        unused = self._tally.unused(task)
        told = call(OPEN, {**fields, "unused": unused}).fields
        self._tally.opened(task, name)
        leaves = [
            TaskValue((ELEMENT, name, number, told["signature"]), tuple(shape), str(dtype))
            for number, (shape, dtype) in enumerate(told["leaves"])
        ]
        return rebuild_structure(told["structure"], iter(leaves))

    def close(self, peer: Peer, timeout: float) -> None:
        """Have a worker let go of all passes."""
        if names := self._tally.all(peer.task):
            peer.call(CLOSE, {"iterators": names}, timeout=timeout, wait=False)


class PerWorkerIterator(PerTask):
    """One pass of every worker over its own dataset: as an argument of a closure, the worker's next batch."""

    def __init__(self, dataset: PerWorkerDataset, name: str) -> None:
        self._dataset = dataset
        self.name = name
        self._known: dict[str, Any] = {}

    def __iter__(self) -> "PerWorkerIterator":
        """Itself."""
        return self

    def __next__(self) -> NoReturn:
        """Not here: the batches are with the workers."""
        raise DataError(
            "the batches of a per-worker dataset are with the workers: give the iterator itself to a closure, as in "
            "coordinator.schedule(fn, args=(iterator,)), which gets the worker's next batch"
        )

    def on(self, call: TaskCall, task: str, *, anew: bool) -> Any:
        """See `PerTask`."""
        if anew or task not in self._known:
            self._known[task] = self._dataset.open(self.name, call, task)
        return self._known[task]
