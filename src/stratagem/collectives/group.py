"""A group of worker processes that sum, gather and share host arrays, in step with each other."""

import logging
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import TracebackType
from typing import Any, Self

import numpy as np

from stratagem import environment
from stratagem.collectives.exchange import Exchange
from stratagem.collectives.group_state import GroupState, Operation
from stratagem.collectives.liveness import Liveness
from stratagem.collectives.members import CallRegistry, GroupOptions, Members
from stratagem.collectives.sum_layout import ArraySpec, Chunk, SumLayout, chunk_bytes, new_buffer
from stratagem.collectives.summation import sum_in_order
from stratagem.errors import StrategyError
from stratagem.runtime.peers import Peers
from stratagem.runtime.wire.arrays import Array
from stratagem.runtime.wire.channels import Channel

_log = logging.getLogger("stratagem")
_MOST_PLANS = 64
_BARRIER, _GATHER = Operation("barrier"), Operation("all_gather")


class _Plan:
    """The layout and memory that all sums of the same arrays share."""

    def __init__(self, specs: Sequence[ArraySpec], workers: int, bytes_per_pack: int) -> None:
        self.layout = SumLayout.plan(specs, workers, bytes_per_pack)
        self.operation = Operation("all_reduce", (*map(str, specs), f"bytes_per_pack={bytes_per_pack}"))

    @cached_property
    def sums(self) -> list[Array]:
        """Memory for the sums: new memory would have to be mapped page by page every time."""
        return self.layout.arrays_in(new_buffer(self.layout.whole))


class Group:
    """The workers of a synchronous strategy, as one of them sees them.

    Making one waits until all workers have made theirs. From then on all must run the same operations in the
    same order, from one thread. Sums are taken in the order of the workers, so they have the same bits on every
    worker and in every run. When a worker dies, all others raise `WorkerLost`, which names it; after that the group
    can no longer be used.

    Args:
        server: This task's server (or its bare listener), which answers the other workers.
        peers: The connections for calling them.
        tasks: The task names of all workers, in the same order everywhere.
        index: The index of this worker among them.
        options: Sizes and times.
        name: Distinguishes groups of the same tasks: one that comes after another needs another name.
        generation: How often the job has been restarted; by default what the launcher says.

    Attributes:
        tasks: The task names of all workers, in order.
        index: The index of this worker.
        count: The number of workers.
        all_done: Whether in the last `all_reduce` every worker said that it was done.

    Raises:
        TaskUnreachable: A worker did not come in time.
        ClusterError: The workers do not agree on who they are.

    Example:
        >>> group = Group(server, peers, ["/job:worker/task:0", "/job:worker/task:1"], index=0)
        >>> total, = group.all_reduce([gradient])
    """

    def __init__(
        self,
        server: CallRegistry,
        peers: Peers,
        tasks: Sequence[str],
        index: int,
        options: GroupOptions | None = None,
        *,
        name: str = "workers",
        generation: int | None = None,
    ) -> None:
        self.tasks = tuple(tasks)
        self.index = index
        self.count = len(tasks)
        self._members = Members(name, self.tasks, index, peers, options or GroupOptions())
        self._plans: dict[tuple[tuple[Any, Any], ...], _Plan] = {}
        self._single_thread = _SingleThread()
        self._liveness: Liveness | None = None
        self._exchange: Exchange | None = None
        self._is_closed = False
        self.all_done = False
        if self.count > 1:
            number = environment.generation() if generation is None else generation
            self._state = GroupState(self.tasks, index, number, secrets.token_hex(8))
            self._liveness = Liveness(self._members, server, self._state)
            self._exchange = Exchange(self._members, server, self._state, self._liveness)
            self._liveness.form()
            try:
                self._exchange.connections.connect()
            except BaseException:
                self.close(finish=False)
                raise
            self.check()
            _log.info("%s has met all %d workers of generation %d", tasks[index], self.count, number)

    @property
    def has_ended(self) -> bool:
        """True if the group is closed or has lost a worker, and so can no longer be used."""
        return self._exchange is not None and self._state.has_ended

    # --------------------------------------------------------------- operations

    @contextmanager
    def summands(
        self, arrays: Sequence[Any], *, empty: bool = False, done: bool = False
    ) -> Iterator[list[Sequence[Any]]]:
        """Yield the summands of an all-reduce, for callers that add them in a computation of their own.

        The summands are a list of lists of arrays like `arrays`. To be added in that order, they give the sums over
        all workers. They are valid until the `with` ends: some lie in the memory of other workers, and this worker's
        own may be the very `arrays`. The list is empty if no worker has anything to add.

        A worker whose data end before the others' goes on taking part, with `empty=True, done=True`, until
        `all_done`: so no row of the others is dropped, and nobody waits in vain.

        Args:
            arrays: Arrays, of the same shapes and dtypes on every worker.
            empty: Add nothing: only shapes and dtypes of `arrays` are looked at, and nothing is sent.
            done: Tell the others that this worker's data have ended.

        Raises:
            WorkerLost: A worker died, left, or did not answer in time.
            VariableMismatch: The workers do not have the same arrays.
            RemoteError: The workers are out of step.
            StrategyError: Arrays that cannot be summed.
        """
        if self._exchange is None:
            self.all_done = done
            yield [] if empty else [arrays]
            return
        own = arrays if empty else [np.asarray(array) for array in arrays]
        plan = self._plan(own)
        flats = None if empty else [array.reshape(-1) for array in own]
        with self._single_thread:
            with self._exchange.operation(plan.operation):
                reduce = self._all_to_all if plan.layout.is_all_to_all else self._reduce_scatter
                summands = reduce(self._exchange, plan, arrays, flats, done)
            yield summands

    def all_reduce(self, arrays: Sequence[Any], *, empty: bool = False, done: bool = False) -> list[Array]:
        """Sum each array over all workers.

        Floating point narrower than 32 bits is added up in float32 and rounded once, at the end; integers are
        exact, and wrap around as NumPy's do. Arguments and errors are those of `summands`.

        Returns:
            The sums, in new arrays with the shapes and dtypes of `arrays`, each on a 64-byte boundary. With one
            worker, the arrays themselves.
        """
        own = arrays if empty else [np.asarray(array) for array in arrays]
        if self._exchange is None:
            self.all_done = done
            return [np.zeros(array.shape, array.dtype) for array in own] if empty else list(own)
        with self.summands(own, empty=empty, done=done) as summands:
            layout = self._plan(own).layout
            sums = layout.arrays_in(new_buffer(layout.whole))
            for index, total in enumerate(sums):
                sum_in_order([each[index].reshape(-1) for each in summands], total.reshape(-1))
            return sums

    @contextmanager
    def gather_views(self, arrays: Sequence[Any]) -> Iterator[list[Sequence[Array]]]:
        """Yield every worker's arrays, in the order of the workers; they need not have the same shapes.

        They are valid until the `with` ends: some lie in the memory of other workers.
        """
        own = [np.asarray(array) for array in arrays]
        if self._exchange is None:
            yield [own]
            return
        with self._single_thread:
            with self._exchange.operation(_GATHER):
                result = self._exchange.swap(lambda worker, channel: own)
            yield [own if worker == self.index else result.tensors[worker] for worker in range(self.count)]

    def all_gather(self, arrays: Sequence[Any]) -> list[list[Array]]:
        """Return every worker's arrays, in the order of the workers; they need not have the same shapes."""
        with self.gather_views(arrays) as views:
            return [
                list(view) if worker == self.index else [np.array(tensor) for tensor in view]
                for worker, view in enumerate(views)
            ]

    def broadcast(self, arrays: Sequence[Any], root: int = 0) -> list[Array]:
        """Return one worker's arrays on all; the others' arrays are not looked at."""
        if not 0 <= root < self.count:
            raise StrategyError(f"root is {root}; the workers are 0 to {self.count - 1}")
        own = [np.asarray(array) for array in arrays] if root == self.index else []
        if self._exchange is None:
            return own
        with self._single_thread, self._exchange.operation(Operation("broadcast", (f"root={root}",))):
            result = self._exchange.swap(lambda worker, channel: own)
            return own if root == self.index else [np.array(tensor) for tensor in result.tensors[root]]

    def barrier(self) -> None:
        """Wait until every worker has come here."""
        if self._exchange is not None:
            with self._single_thread, self._exchange.operation(_BARRIER):
                self._exchange.swap(lambda worker, channel: ())

    # --------------------------------------------------------------------- life

    def check(self, seconds: float = 0.0) -> None:
        """Raise the failure that has ended this group: for callers that sum by other means than the group's own.

        Args:
            seconds: How long to wait for one.
        """
        if self._liveness is not None and self._liveness.wait_for_end(seconds):
            self._liveness.raise_failure()

    def close(self, finish: bool = True) -> None:
        """Leave the group. May be called twice.

        Args:
            finish: Whether this worker has finished: it then waits until the others have what they need from it.
                One that has failed says `False`, and the others raise `WorkerLost`.
        """
        if self._liveness is None or self._exchange is None or self._is_closed:
            return
        self._is_closed = True
        if finish:
            self._liveness.leave()
        self._liveness.close()
        self._exchange.connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(finish=error is None)

    # --------------------------------------------------------------- how to sum

    def _all_to_all(
        self,
        exchange: Exchange,
        plan: _Plan,
        arrays: Sequence[Any],
        flats: Sequence[Array] | None,
        done: bool,
    ) -> list[Sequence[Any]]:
        """Send everything to every worker: the summands are those of all workers."""
        layout = plan.layout
        whole = layout.whole

        def payload(worker: int, channel: Channel) -> Sequence[Array]:
            return () if flats is None else [layout.fill(channel.lend(whole.nbytes), whole, flats)]

        result = exchange.swap(payload, is_empty=flats is None, is_done=done)
        self.all_done = result.all_done
        return [
            arrays if worker == self.index else layout.arrays_in(chunk_bytes(result.tensors[worker], whole))
            for worker in range(self.count)
            if worker not in result.empty
        ]

    def _reduce_scatter(
        self,
        exchange: Exchange,
        plan: _Plan,
        arrays: Sequence[Any],
        flats: Sequence[Array] | None,
        done: bool,
    ) -> list[Sequence[Any]]:
        """Let every worker sum a share for all, and send it to all: the one summand is the sum."""
        layout, sums = plan.layout, [array.reshape(-1) for array in plan.sums]
        for chunks in layout.rounds:
            own = chunks[self.index]

            def part(worker: int, channel: Channel, chunks: Sequence[Chunk] = chunks) -> Sequence[Array]:
                chunk = chunks[worker]
                return () if flats is None else [layout.fill(channel.lend(chunk.nbytes), chunk, flats)]

            def total(worker: int, channel: Channel, own: Chunk = own) -> Sequence[Array]:
                return [layout.fill(channel.lend(own.nbytes), own, sums)]

            result = exchange.swap(part, is_empty=flats is None, is_done=done)
            self.all_done = result.all_done
            parts = [
                [flats[piece.array][piece.start : piece.stop] for piece in own.slices]
                if worker == self.index and flats is not None
                else layout.slices_in(chunk_bytes(result.tensors[worker], own), own)
                for worker in range(self.count)
                if worker not in result.empty
            ]
            for number, piece in enumerate(own.slices):
                sum_in_order([each[number] for each in parts], sums[piece.array][piece.start : piece.stop])
            for worker, tensors in exchange.swap(total).tensors.items():
                chunk = chunks[worker]
                flat_sums = layout.slices_in(chunk_bytes(tensors, chunk), chunk)
                for piece, values in zip(chunk.slices, flat_sums, strict=True):
                    np.copyto(sums[piece.array][piece.start : piece.stop], values)
        return [plan.sums]

    def _plan(self, arrays: Sequence[Any]) -> _Plan:
        key = tuple([(array.shape, array.dtype) for array in arrays])
        plan = self._plans.get(key)
        if plan is None:
            specs = [ArraySpec(tuple(shape), np.dtype(dtype)) for shape, dtype in key]
            plan = _Plan(specs, self.count, self._members.options.bytes_per_pack)
            while len(self._plans) >= _MOST_PLANS:
                del self._plans[next(iter(self._plans))]
            self._plans[key] = plan
        return plan


class _SingleThread:
    """Lets one thread in at a time; a second one gets an error."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise StrategyError(
                "two threads of this worker run operations of one group; let one thread run all"
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()
