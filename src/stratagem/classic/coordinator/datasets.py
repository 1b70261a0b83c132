"""Datasets that every worker makes for itself: the client's handle to them, and the worker's service.

A worker makes a dataset by a function of a module that it was started with (`--allow-import`), and prefetches it. This
is the only way by which a client can have a server run the user's Python, and so it is closed unless whoever started
the server has named the module.
"""

import hashlib
import inspect
import itertools
import re
import secrets
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from stratagem.data.stream_batches import Prefetcher
from stratagem.errors import DataError, LimitExceeded
from stratagem.runtime import Server
from stratagem.runtime.remote_function import PerTask, TaskCall, TaskValue
from stratagem.runtime.remote_variable import to_array
from stratagem.runtime.wire import Peer, Reply, Request
from stratagem.runtime.wire.arrays import Array
from stratagem.strategies.input_context import InputContext

ELEMENT = "element"
"""The kind of a program's input that is part of a worker's next batch."""
OPEN, CLOSE = "dataset.open", "dataset.close"
MOST_PASSES = 256
"""The most passes over datasets that clients may have under way on one worker."""
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_LEAF = "leaf"

# The client's side.


class _OpenIterators:
    """The iterators that workers hold for this client, and those among them that the client has released."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._prefix = secrets.token_hex(8)
        self._open: dict[str, set[str]] = {}
        self._dropped: deque[str] = deque()
        self._unused: set[str] = set()

    def new_name(self) -> str:
        return f"{self._prefix}-{next(self._numbers)}"

    def add(self, task: str, name: str) -> None:
        with self._lock:
            self._open.setdefault(task, set()).add(name)

    def release(self, name: str) -> None:
        """Note that nobody here holds an iterator any more.

        The garbage collector may call this at any point of any thread, so it takes no lock.
        """
        self._dropped.append(name)

    def pop_released(self, task: str) -> list[str]:
        """Remove and return the released iterators of a task, to tell the task of them."""
        with self._lock:
            while self._dropped:
                self._unused.add(self._dropped.popleft())
            released = self._open.get(task, set()) & self._unused
            self._open.get(task, set()).difference_update(released)
        return sorted(released)

    def pop_all(self, task: str) -> list[str]:
        """Remove and return all iterators of a task."""
        with self._lock:
            return sorted(self._open.pop(task, set()))


class PerWorkerDataset:
    """A dataset that each worker makes for itself; `ClusterCoordinator.create_per_worker_dataset` returns it.

    Args:
        function: The function that makes it on a worker: `module:function`.
        places: The number of each worker, which the function may ask for.

    Example:
        >>> batches = iter(coordinator.create_per_worker_dataset("my_data:digits"))
        >>> coordinator.schedule(step, args=(w, batches))
    """

    def __init__(self, function: str, places: Mapping[str, int]) -> None:
        if not isinstance(function, str) or not _NAME.fullmatch(function):
            raise DataError(
                f"a dataset is named by the function that makes it on a worker, such as 'my_data:training_batches'; got "
                f"{function!r}. Functions do not travel to the workers, which import them "
                "(stratagem serve --allow-import my_data)"
            )
        self.function = function
        self._places = dict(places)
        self._iterators = _OpenIterators()

    def __iter__(self) -> "PerWorkerIterator":
        """Return a new pass over the dataset, on every worker; each begins it at the iterator's first use there."""
        iterator = PerWorkerIterator(self, self._iterators.new_name())
        weakref.finalize(iterator, self._iterators.release, iterator.name).atexit = False
        return iterator

    def open(self, name: str, call: TaskCall, task: str) -> Any:
        """Have a worker begin a pass, unless it has, and return its next batch as a tree of `TaskValue`."""
        fields = {
            "iterator": name,
            "function": self.function,
            "place": self._places[task],
            "places": len(self._places),
            "unused": self._iterators.pop_released(task),
        }
        description = call(OPEN, fields).fields
        self._iterators.add(task, name)
        leaves = [
            TaskValue((ELEMENT, name, number, description["signature"]), tuple(shape), str(dtype))
            for number, (shape, dtype) in enumerate(description["leaves"])
        ]
        return rebuild_structure(description["structure"], iter(leaves))

    def close(self, peer: Peer, timeout: float) -> None:
        """Have a worker end all passes."""
        if names := self._iterators.pop_all(peer.task):
            peer.call(CLOSE, {"iterators": names}, timeout=timeout, wait=False)


class PerWorkerIterator(PerTask):
    """One pass of every worker over its own dataset. As an argument of a closure, it is the worker's next batch."""

    def __init__(self, dataset: PerWorkerDataset, name: str) -> None:
        self._dataset = dataset
        self.name = name
        self._batches: dict[str, Any] = {}

    def __iter__(self) -> "PerWorkerIterator":
        return self

    def __next__(self) -> NoReturn:
        raise DataError(
            "the batches of a per-worker dataset are on the workers: give the iterator itself to a closure, as in "
            "coordinator.schedule(fn, args=(iterator,)), which gets the worker's next batch"
        )

    def on(self, call: TaskCall, task: str, *, anew: bool) -> Any:
        if anew or task not in self._batches:
            self._batches[task] = self._dataset.open(self.name, call, task)
        return self._batches[task]


# What both sides know: the structure of a batch, as plain values.


def describe_structure(batch: Any) -> tuple[Any, list[Any]]:
    """Return the structure of a batch in plain values, and its leaves in order. Pure.

    Example:
        >>> describe_structure({"image": 1, "label": (2, 3)})
        ({'dict': [['image', 'leaf'], ['label', {'tuple': ['leaf', 'leaf']}]]}, [1, 2, 3])
    """
    leaves: list[Any] = []

    def describe(value: Any) -> Any:
        if isinstance(value, dict):
            if not all(isinstance(key, str) for key in value):
                raise DataError(f"the keys of a batch have to be strings, not {list(value)!r:.80}")
            return {"dict": [[key, describe(each)] for key, each in value.items()]}
        if type(value) is tuple or type(value) is list:
            return {type(value).__name__: [describe(each) for each in value]}
        if isinstance(value, tuple):
            raise DataError(
                f"a batch is made of dictionaries, tuples, lists and arrays, but this one has a {type(value).__name__}: "
                "turn it into a plain tuple or a dictionary"
            )
        leaves.append(value)
        return _LEAF

    return describe(batch), leaves


def rebuild_structure(structure: Any, leaves: Iterator[Any]) -> Any:
    """Build the batch that `describe_structure` described, from these leaves. Pure."""
    if structure == _LEAF:
        return next(leaves)
    ((kind, inner),) = structure.items()
    if kind == "dict":
        return {key: rebuild_structure(each, leaves) for key, each in inner}
    values = [rebuild_structure(each, leaves) for each in inner]
    return tuple(values) if kind == "tuple" else values


# The worker's side.


@dataclass(frozen=True)
class _Element:
    """One batch, with a signature that distinguishes batches of different structure, shapes or dtypes."""

    structure: Any
    leaves: list[Array]
    signature: str

    @classmethod
    def from_batch(cls, batch: Any) -> "_Element":
        structure, values = describe_structure(batch)
        # Copied: batches are prefetched, and the dataset may reuse the memory of one for the next.
        leaves = [np.array(to_array(value)[0]) for value in values]
        kinds = [(leaf.shape, str(leaf.dtype)) for leaf in leaves]
        return cls(structure, leaves, hashlib.sha256(repr((structure, kinds)).encode()).hexdigest()[:16])


class _Pass:
    """One pass over a dataset. Hold `lock` from `peek` to `advance`."""

    def __init__(self, function: str, batches: Iterable[Any]) -> None:
        self.lock = threading.Lock()
        self._function = function
        self._prefetched = Prefetcher((_Element.from_batch(batch) for batch in batches), ahead=1)
        self._elements: Iterator[_Element] = iter(self._prefetched)
        self._next: _Element | None = None
        self._count = 0

    def peek(self) -> _Element:
        """Return the next batch without using it up."""
        if self._next is None:
            self._next = next(self._elements, None)
        if self._next is None:
            raise DataError(
                f"the dataset of {self._function} ended on this worker after {self._count} batches: let it repeat, schedule "
                "fewer closures, or begin a new pass with iter(dataset)"
            )
        return self._next

    def advance(self) -> None:
        """Use up the batch that `peek` returned."""
        self._next = None
        self._count += 1

    def close(self) -> None:
        self._prefetched.close()


class DatasetService:
    """Makes the datasets of one worker, with functions of the allowed modules, and supplies programs with batches."""

    def __init__(self, server: Server) -> None:
        self._task = server.task
        self._imports = server.imports
        self._passes: dict[str, _Pass] = {}
        self._lock = threading.Lock()
        server.register(OPEN, self._open)
        server.register(CLOSE, self._close)
        server.supply(ELEMENT, self._supply)
        server.when_closed(self.close)

    def close(self) -> None:
        """End all passes."""
        self._end_passes(list(self._passes))

    # What clients may call.

    def _open(self, request: Request) -> Reply:
        fields = request.fields
        self._end_passes(fields["unused"])
        current = self._pass(str(fields["iterator"]), str(fields["function"]), fields)
        with current.lock:
            element = current.peek()
        return Reply(
            {
                "structure": element.structure,
                "leaves": [[list(leaf.shape), str(leaf.dtype)] for leaf in element.leaves],
                "signature": element.signature,
            }
        )

    def _close(self, request: Request) -> Reply:
        self._end_passes(request.fields["iterators"])
        return Reply()

    def _supply(self, references: list[list[Any]]) -> list[Any] | None:
        """Return the next batches of all passes that a program reads from, and use up all of them or none."""
        names = sorted({str(name) for _, name, *_ in references})
        with self._lock:
            passes = {name: self._passes[name] for name in names if name in self._passes}
        if len(passes) < len(names):
            return None
        with ExitStack() as stack:
            for name in names:  # in one order, so that two programs never block each other
                stack.enter_context(passes[name].lock)
            elements = {name: each.peek() for name, each in passes.items()}
            if any(signature != elements[name].signature for _, name, _, signature in references):
                return None
            for each in passes.values():
                each.advance()
        return [elements[name].leaves[number] for _, name, number, _ in references]

    # Passes.

    def _pass(self, name: str, function: str, fields: dict[str, Any]) -> _Pass:
        with self._lock:
            if name in self._passes:
                return self._passes[name]
            if len(self._passes) >= MOST_PASSES:
                raise LimitExceeded(
                    f"{self._task} has {MOST_PASSES} passes over datasets under way: drop iterators that have reached "
                    "their end"
                )
        context = InputContext(int(fields["places"]), int(fields["place"]), int(fields["places"]))
        new = _Pass(function, self._batches(function, context))
        with self._lock:
            current = self._passes.setdefault(name, new)
        if current is not new:  # the client asked twice
            new.close()
        return current

    def _batches(self, function: str, context: InputContext) -> Iterable[Any]:
        """Call the function that makes a dataset, if a module that is allowed defines it."""
        maker = self._imports.find(function, "a dataset", "stratagem run --single-client", DataError)
        if not callable(maker):
            module, _, name = function.partition(":")
            raise DataError(f"module {module!r} defines no function {name!r}, which was to make a dataset")
        wants_context = len(inspect.signature(maker).parameters) > 0
        return check_dataset(function, maker(context) if wants_context else maker())

    def _end_passes(self, names: Iterable[Any]) -> None:
        with self._lock:
            passes = [self._passes.pop(str(name), None) for name in names]
        for each in passes:
            if each is not None:
                each.close()


def check_dataset(function: str, value: Any) -> Iterable[Any]:
    """Return the value that a function returned, if it is a dataset.

    Raises:
        DataError: It cannot be iterated over.
    """
    if not isinstance(value, Iterable) and not hasattr(value, "__getitem__"):
        raise DataError(
            f"{function} returned {value!r:.80}; it has to return an iterable of batches, such as a generator"
        )
    return value  # type: ignore[no-any-return]
