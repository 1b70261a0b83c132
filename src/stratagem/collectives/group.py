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
from stratagem.collectives.bonds import Bonds
from stratagem.collectives.exchange import Exchange
from stratagem.collectives.layout import Chunk, Layout
from stratagem.collectives.ledger import Ledger
from stratagem.collectives.lines import Lines
from stratagem.collectives.members import Members, PeerSource, Registrar
from stratagem.collectives.options import GroupOptions
from stratagem.collectives.packing import arrays_in, new_room, pieces_in, received, write
from stratagem.collectives.specs import ArraySpec
from stratagem.collectives.sums import sum_in_order
from stratagem.collectives.tickets import Operation
from stratagem.errors import StrategyError
from stratagem.runtime.wire.arrays import Array
from stratagem.runtime.wire.channels import Channel

_log = logging.getLogger("stratagem")
_MOST_PLANS = 64
_BARRIER, _GATHER = Operation("barrier"), Operation("all_gather")


class _Plan:
    """What is kept from one all-reduce to the next of the same arrays."""

    def __init__(self, specs: Sequence[ArraySpec], workers: int, bytes_per_pack: int) -> None:
        self.layout = Layout.plan(specs, workers, bytes_per_pack)
        self.operation = Operation("all_reduce", (*map(str, specs), f"bytes_per_pack={bytes_per_pack}"))

    @cached_property
    def sums(self) -> list[Array]:
        """Memory for the sums: new memory would have to be mapped page by page every time."""
        whole = self.layout.whole
        return arrays_in(new_room(whole), whole, self.layout.specs)


class Group:
    """The workers of a synchronous strategy, as one of them sees them.

    Making one waits until all workers have made theirs. From then on all must run the same operations in the
    same order, from one thread. Sums are taken in the order of the workers, so they have the same bits on every
    worker and in every run. When a worker dies, all others raise `WorkerLost`, which names it; the group is of no
    use after that.

    Args:
        server: The runtime's server of this task (or its bare listener), which answers the other workers.
        peers: For calling them, by task name.
        tasks: The task names of all workers, in the same order everywhere.
        index: Which of them this is.
        options: Sizes and times.
        name: Tells apart groups of the same tasks: one that comes after another needs another name.
        generation: How often the job has been restarted; by default what the launcher says.

    Attributes:
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
        server: Registrar,
        peers: PeerSource,
        tasks: Sequence[str],
        index: int,
        options: GroupOptions | None = None,
        *,
        name: str = "workers",
        generation: int | None = None,
    ) -> None:
        self._members = Members(name, tuple(tasks), index, peers, options or GroupOptions())
        self._plans: dict[tuple[tuple[Any, Any], ...], _Plan] = {}
        self._one_at_a_time = _OneAtATime()
        self._bonds: Bonds | None = None
        self._lines: Lines | None = None
        self._exchange: Exchange | None = None
        self._is_closed = False
        self.all_done = False
        if self.count > 1:
            number = environment.generation() if generation is None else generation
            ledger = Ledger(self._members.tasks, index, number, secrets.token_hex(8))
            self._bonds = Bonds(self._members, server, ledger)
            self._lines = Lines(self._members, server, ledger, self._bonds)
            self._exchange = Exchange(self._members, server, ledger, self._bonds, self._lines)
            self._bonds.form()
            try:
                self._lines.connect()
            except BaseException:
                self.close(finish=False)
                raise
            self.check()
            _log.info("%s has met all %d workers of generation %d", tasks[index], self.count, number)

    @property
    def index(self) -> int:
        """Which worker this is."""
        return self._members.index

    @property
    def count(self) -> int:
        """How many workers there are."""
        return self._members.count

    @property
    def tasks(self) -> Sequence[str]:
        """The workers' task names, in order."""
        return self._members.tasks

    @property
    def has_ended(self) -> bool:
        """Whether it is closed, or has lost one of them: then it is of no use any more."""
        return self._bonds is not None and self._bonds.has_ended()

    # --------------------------------------------------------------- operations

    @contextmanager
    def summands(
        self, arrays: Sequence[Any], *, empty: bool = False, done: bool = False
    ) -> Iterator[list[Sequence[Any]]]:
        """What is left to be added up, to have each array summed over all workers: for those who add on the way.

        For use in a `with`. What comes is a list of summands, each a list of arrays like `arrays`; they are to be
        added in that order, and hold good until the `with` ends. Some lie in the memory of other workers; this
        worker's own may be the very `arrays`. There is none if no worker has anything to add.

        A worker whose data end before the others' goes on taking part, with `empty=True, done=True`, until
        `all_done`: so no row of the others is dropped, and nobody waits in vain.

        Args:
            arrays: Arrays, of the same shapes and dtypes on every worker.
            empty: Add nothing: of `arrays` only shapes and dtypes are looked at, and nothing is sent.
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
        held = arrays if empty else [np.asarray(array) for array in arrays]
        plan = self._plan(held)
        flats = [] if empty else [array.reshape(-1) for array in held]
        with self._one_at_a_time:
            with self._exchange.operation(plan.operation):
                by = self._from_everybody if plan.layout.goes_whole else self._by_shares
                found = by(self._exchange, plan, arrays, flats, empty, done)
            yield found

    def all_reduce(self, arrays: Sequence[Any], *, empty: bool = False, done: bool = False) -> list[Array]:
        """Sum each array over all workers.

        Floating point narrower than 32 bits is added up in float32 and rounded once, at the end; integers are
        exact, and wrap around as NumPy's do. Arguments and errors are those of `summands`.

        Returns:
            The sums, in new arrays with the shapes and dtypes of `arrays`, each on a 64-byte boundary. With one
            worker, the arrays themselves.
        """
        held = arrays if empty else [np.asarray(array) for array in arrays]
        if self._exchange is None:
            self.all_done = done
            return [np.zeros(array.shape, array.dtype) for array in held] if empty else list(held)
        with self.summands(held, empty=empty, done=done) as found:
            layout = self._plan(held).layout
            sums = arrays_in(new_room(layout.whole), layout.whole, layout.specs)
            for index, total in enumerate(sums):
                sum_in_order([each[index].reshape(-1) for each in found], total.reshape(-1))
            return sums

    @contextmanager
    def gathered(self, arrays: Sequence[Any]) -> Iterator[list[Sequence[Array]]]:
        """Every worker's arrays, in the order of the workers; they need not have the same shapes.

        For use in a `with`, until whose end they hold good: some lie in the memory of other workers.
        """
        own = [np.asarray(array) for array in arrays]
        if self._exchange is None:
            yield [own]
            return
        with self._one_at_a_time:
            with self._exchange.operation(_GATHER):
                swapped = self._exchange.swap(lambda worker, channel: own)
            yield [own if worker == self.index else swapped.tensors[worker] for worker in range(self.count)]

    def all_gather(self, arrays: Sequence[Any]) -> list[list[Array]]:
        """Every worker's arrays, in the order of the workers; they need not have the same shapes."""
        with self.gathered(arrays) as parts:
            return [
                list(part) if worker == self.index else [np.array(tensor) for tensor in part]
                for worker, part in enumerate(parts)
            ]

    def broadcast(self, arrays: Sequence[Any], root: int = 0) -> list[Array]:
        """One worker's arrays on all; the others' arrays are not looked at."""
        if not 0 <= root < self.count:
            raise StrategyError(f"root is {root}; the workers are 0 to {self.count - 1}")
        own = [np.asarray(array) for array in arrays] if root == self.index else []
        if self._exchange is None:
            return own
        with self._one_at_a_time, self._exchange.operation(Operation("broadcast", (f"root={root}",))):
            swapped = self._exchange.swap(lambda worker, channel: own)
            return own if root == self.index else [np.array(tensor) for tensor in swapped.tensors[root]]

    def barrier(self) -> None:
        """Wait until every worker has come here."""
        if self._exchange is not None:
            with self._one_at_a_time, self._exchange.operation(_BARRIER):
                self._exchange.swap(lambda worker, channel: ())

    # --------------------------------------------------------------------- life

    def check(self, seconds: float = 0.0) -> None:
        """Raise what has brought this group to an end: for those who sum by other means than its own.

        Args:
            seconds: How long to wait for that.
        """
        if self._bonds is not None and self._bonds.wait_for_end(seconds):
            self._bonds.raise_failure()

    def close(self, finish: bool = True) -> None:
        """Leave the group. May be called twice.

        Args:
            finish: Whether this worker has finished: it then waits until the others have what they need from it.
                One that has failed says `False`, and the others raise `WorkerLost`.
        """
        if self._bonds is None or self._lines is None or self._is_closed:
            return
        self._is_closed = True
        if finish:
            self._bonds.leave()
        self._bonds.close()
        self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(finish=error is None)

    # --------------------------------------------------------------- how to sum

    def _from_everybody(
        self,
        exchange: Exchange,
        plan: _Plan,
        arrays: Sequence[Any],
        flats: Sequence[Array],
        empty: bool,
        done: bool,
    ) -> list[Sequence[Any]]:
        """Everybody sends everything to everybody: the summands are those of all workers."""
        whole, specs = plan.layout.whole, plan.layout.specs

        def parcel(worker: int, channel: Channel) -> Sequence[Array]:
            return () if empty else [write(channel.lend(whole.nbytes), whole, flats, specs)]

        swapped = exchange.swap(parcel, is_empty=empty, is_done=done)
        self.all_done = swapped.all_done
        return [
            arrays
            if worker == self.index
            else arrays_in(received(swapped.tensors[worker], whole), whole, specs)
            for worker in range(self.count)
            if worker not in swapped.empty
        ]

    def _by_shares(
        self,
        exchange: Exchange,
        plan: _Plan,
        arrays: Sequence[Any],
        flats: Sequence[Array],
        empty: bool,
        done: bool,
    ) -> list[Sequence[Any]]:
        """Every worker adds up a share for all: the one summand is the sum."""
        specs, sums = plan.layout.specs, [array.reshape(-1) for array in plan.sums]
        for chunks in plan.layout.rounds:
            own = chunks[self.index]

            def part(worker: int, channel: Channel, chunks: Sequence[Chunk] = chunks) -> Sequence[Array]:
                chunk = chunks[worker]
                return () if empty else [write(channel.lend(chunk.nbytes), chunk, flats, specs)]

            def total(worker: int, channel: Channel, own: Chunk = own) -> Sequence[Array]:
                return [write(channel.lend(own.nbytes), own, sums, specs)]

            swapped = exchange.swap(part, is_empty=empty, is_done=done)
            self.all_done = swapped.all_done
            parts = [
                [flats[piece.array][piece.start : piece.stop] for piece in own.pieces]
                if worker == self.index
                else pieces_in(received(swapped.tensors[worker], own), own, specs)
                for worker in range(self.count)
                if worker not in swapped.empty
            ]
            for number, piece in enumerate(own.pieces):
                sum_in_order([each[number] for each in parts], sums[piece.array][piece.start : piece.stop])
            swapped = exchange.swap(total)
            for worker, tensors in swapped.tensors.items():
                chunk = chunks[worker]
                for piece, summed in zip(
                    chunk.pieces, pieces_in(received(tensors, chunk), chunk, specs), strict=True
                ):
                    np.copyto(sums[piece.array][piece.start : piece.stop], summed)
        return [plan.sums]

    # ----------------------------------------------------------------- the rest

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


class _OneAtATime:
    """Lets one thread in at a time, and tells a second one that it is wrong here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise StrategyError(
                "two threads of this worker run operations of one group; let one thread run all"
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()
