"""The worker's side of datasets: made by functions of modules that the worker was started with, read ahead, used once.

This is the only way by which a client can have a server run Python of the user's, and so it is closed unless whoever
started the server has named the module.
"""

import hashlib
import inspect
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from stratagem.classic.coordinator.per_worker_dataset import CLOSE, ELEMENT, OPEN
from stratagem.classic.coordinator.structure import describe_structure
from stratagem.data.stream_batches import Prefetcher
from stratagem.errors import DataError, LimitExceeded
from stratagem.runtime import Server
from stratagem.runtime.remote_variable import to_array
from stratagem.runtime.wire import Reply, Request
from stratagem.runtime.wire.arrays import Array
from stratagem.strategies.input_context import InputContext

MOST_STREAMS = 256
"""How many passes over datasets clients may have under way on one worker."""


@dataclass(frozen=True)
class _Element:
    """One batch.

    Attributes:
        structure: How its leaves belong together, in plain values.
        leaves: Its arrays.
        signature: Tells apart batches of different structure, shapes or dtypes.
    """

    structure: Any
    leaves: list[Array]
    signature: str

    @classmethod
    def of(cls, batch: Any) -> "_Element":
        structure, found = describe_structure(batch)
        # Copied: it is read ahead, and who makes batches may use the memory of one for the next.
        leaves = [np.array(to_array(leaf)[0]) for leaf in found]
        kinds = [(leaf.shape, str(leaf.dtype)) for leaf in leaves]
        return cls(structure, leaves, hashlib.sha256(repr((structure, kinds)).encode()).hexdigest()[:16])


class _Stream:
    """One pass over a dataset.

    Attributes:
        lock: Held by whoever looks at the next batch in order to take it.
    """

    def __init__(self, function: str, batches: Iterable[Any]) -> None:
        self.lock = threading.Lock()
        self._function = function
        self._ahead = Prefetcher((_Element.of(batch) for batch in batches), ahead=1)
        self._elements: Iterator[_Element] = iter(self._ahead)
        self._next: _Element | None = None
        self._taken = 0

    def next(self) -> _Element:
        """The next batch, which stays the next; the caller holds the lock."""
        if self._next is None:
            self._next = next(self._elements, None)
        if self._next is None:
            raise DataError(
                f"the dataset of {self._function} is at its end here, after {self._taken} batches: let it repeat, schedule "
                "fewer closures, or begin a new pass with iter(dataset)"
            )
        return self._next

    def take(self) -> None:
        """That batch is used."""
        self._next = None
        self._taken += 1

    def close(self) -> None:
        """End the reading ahead."""
        self._ahead.close()


class DatasetService:
    """The datasets of one worker.

    Args:
        server: The worker's server.
        allowed: The modules whose functions may make datasets.
    """

    def __init__(self, server: Server, allowed: Collection[str] = ()) -> None:
        self._task = server.task
        self._allowed = tuple(allowed)
        self._streams: dict[str, _Stream] = {}
        self._lock = threading.Lock()
        server.register(OPEN, self._open)
        server.register(CLOSE, self._close)
        server.supply(ELEMENT, self._supply)
        server.when_closed(self.close)

    def close(self) -> None:
        """Let go of everything."""
        self._forget(list(self._streams))

    # What clients may call.

    def _open(self, request: Request) -> Reply:
        fields = request.fields
        self._forget(fields["unused"])
        stream = self._stream(str(fields["iterator"]), str(fields["function"]), fields)
        with stream.lock:
            element = stream.next()
        return Reply(
            {
                "structure": element.structure,
                "leaves": [[list(leaf.shape), str(leaf.dtype)] for leaf in element.leaves],
                "signature": element.signature,
            }
        )

    def _close(self, request: Request) -> Reply:
        self._forget(request.fields["iterators"])
        return Reply()

    def _supply(self, references: list[list[Any]]) -> list[Any] | None:
        """The next batches of all passes that a program reads from; all are used, or none."""
        names = sorted({str(name) for _, name, *_ in references})
        with self._lock:
            streams = {name: self._streams[name] for name in names if name in self._streams}
        if len(streams) < len(names):
            return None
        with ExitStack() as stack:
            for name in names:  # in one order, so that two programs never block each other
                stack.enter_context(streams[name].lock)
            elements = {name: stream.next() for name, stream in streams.items()}
            if any(signature != elements[name].signature for _, name, _, signature in references):
                return None
            for stream in streams.values():
                stream.take()
        return [elements[name].leaves[number] for _, name, number, _ in references]

    # Passes.

    def _stream(self, name: str, function: str, fields: dict[str, Any]) -> _Stream:
        with self._lock:
            if name in self._streams:
                return self._streams[name]
            if len(self._streams) >= MOST_STREAMS:
                raise LimitExceeded(
                    f"{self._task} has {MOST_STREAMS} passes over datasets under way: let go of iterators that are at "
                    "their end"
                )
        context = InputContext(int(fields["places"]), int(fields["place"]), int(fields["places"]))
        stream = _Stream(function, self._batches(function, context))
        with self._lock:
            kept = self._streams.setdefault(name, stream)
        if kept is not stream:  # the client asked twice
            stream.close()
        return kept

    def _batches(self, function: str, context: InputContext) -> Iterable[Any]:
        """What the function makes; it is asked only if it is one that a module which is allowed defines."""
        module, _, name = function.partition(":")
        if module not in self._allowed:
            named = ", ".join(self._allowed) or "none"
            raise DataError(
                f"{self._task} may not import {module!r} for a dataset; it was started with: {named}. Start it with "
                f"`stratagem serve --allow-import {module}` (or `stratagem run --single-client --allow-import {module}`)"
            )
        try:
            made_by = getattr(import_module(module), name, None)
        except ImportError as error:
            raise DataError(
                f"{self._task} cannot import {module!r}: {error}. Is it installed there, or on PYTHONPATH?"
            ) from error
        if not callable(made_by) or getattr(made_by, "__module__", None) != module:
            raise DataError(f"module {module!r} defines no function {name!r}, which was to make a dataset")
        asks = len(inspect.signature(made_by).parameters) > 0
        return checked_batches(function, made_by(context) if asks else made_by())

    def _forget(self, names: Iterable[Any]) -> None:
        with self._lock:
            streams = [self._streams.pop(str(name), None) for name in names]
        for stream in streams:
            if stream is not None:
                stream.close()


def checked_batches(function: str, made: Any) -> Iterable[Any]:
    """What a function made, if it is a dataset.

    Raises:
        DataError: It cannot be iterated over.
    """
    if not isinstance(made, Iterable) and not hasattr(made, "__getitem__"):
        raise DataError(
            f"{function} returned {made!r:.80}; it is to return an iterable of batches, such as a generator"
        )
    return made  # type: ignore[no-any-return]
