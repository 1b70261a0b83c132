"""`ClusterCoordinator`: schedules functions on whichever worker is free, with one thread per worker."""

import contextlib
import itertools
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import jax

from stratagem.classic.coordinator.closures import Closure, RemoteValue, copy_arguments
from stratagem.classic.coordinator.datasets import PerWorkerDataset
from stratagem.classic.coordinator.dispatch import (
    CancelClosure,
    Dispatch,
    FailClosure,
    Instruction,
    RunClosure,
)
from stratagem.cluster import how_to_start, resolve_cluster
from stratagem.errors import (
    ClosureCancelled,
    ClusterError,
    DeadlineExceeded,
    StratagemError,
    StrategyError,
    TaskLost,
    TaskUnreachable,
)
from stratagem.runtime import RemoteFunction, RemoteVariable, Session
from stratagem.runtime.exits import DAEMON_WORK
from stratagem.runtime.peers import is_lost, task_name
from stratagem.runtime.wire.waiting import LOG_EVERY
from stratagem.strategies import ParameterServerStrategy

_log = logging.getLogger("stratagem")
_QUEUED_PER_WORKER = 16
_MOST_FUNCTIONS = 128
_PING_SECONDS = 5.0
_PAUSE_SECONDS = 0.2
_FAREWELL_SECONDS = 1.0


class ClusterCoordinator:
    """Runs functions on the workers of a cluster, from one client.

    A scheduled function runs at least once, on any worker. If that worker is lost meanwhile, the function is the next
    to run on another. The next `schedule`, `join` or `done` raises the first error of any function, which also cancels
    the queue. Functions travel as programs: workers run no user code, except to make datasets, from modules that they
    were started with.

    Args:
        strategy: A `ParameterServerStrategy` with `replication="in-graph"`, or a `Session`. By default the cluster of
            TF_CONFIG or flags.
        queue_size: How many functions may be queued before `schedule` waits. By default, 16 for each worker.
        timeout: Seconds that a function may run on a worker.

    Example:
        >>> coordinator = ClusterCoordinator(session)
        >>> batches = iter(coordinator.create_per_worker_dataset("my_data:digits"))
        >>> for _ in range(1000):
        ...     loss = coordinator.schedule(step, args=(w, batches), add_to=[w])
        >>> coordinator.join()
        >>> loss.fetch()
    """

    def __init__(
        self,
        strategy: ParameterServerStrategy | Session | None = None,
        *,
        queue_size: int | None = None,
        timeout: float = 600.0,
    ) -> None:
        if queue_size is not None and (not isinstance(queue_size, int) or queue_size < 1):
            raise StrategyError(f"queue_size is {queue_size!r}; give a whole number of at least 1, or None")
        self._session, self._owns_session = _session(strategy)
        cluster = self._session.cluster
        if "worker" not in cluster.jobs:
            raise ClusterError(
                f"the cluster has no worker to run functions on, only {', '.join(cluster.jobs)}: add some"
            )
        self._workers = [task_name("worker", index) for index in cluster.task_indices("worker")]
        self._timeout = timeout
        self._functions: OrderedDict[Any, RemoteFunction] = OrderedDict()
        self._datasets: list[PerWorkerDataset] = []
        self._numbers = itertools.count()
        self._closures: dict[int, Closure] = {}
        self._assignments: dict[str, int] = {}
        self._dispatch = Dispatch(queue_size or _QUEUED_PER_WORKER * len(self._workers))
        self._changed = threading.Condition()
        self._is_closed = False
        self._threads = [
            threading.Thread(
                target=self._serve_worker, args=(worker,), name=f"stratagem-coordinator-{worker}", daemon=True
            )
            for worker in self._workers
        ]
        for thread in self._threads:
            thread.start()

    # Closures.

    def schedule(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        assign_to: RemoteVariable | Sequence[RemoteVariable] = (),
        add_to: RemoteVariable | Sequence[RemoteVariable] = (),
    ) -> RemoteValue:
        """Have a worker run a function, as soon as one is free. Wait while the queue is full.

        Args:
            fn: The function. JAX traces it once for each shape of its arguments: schedule the same function again
                rather than a new one each time, which would be traced each time.
            args: Its arguments: arrays, RemoteVariables (the worker fetches them from where they are), iterators
                over per-worker datasets (the worker's next batch), or trees of those.
            kwargs: Its arguments by name.
            assign_to: Variables to which the worker assigns the function's first results.
            add_to: Variables to which the results after those are added, where the variables are. Workers that run at
                the same time overwrite each other's assignments, but no addition is lost.

        Returns:
            The remaining results, once the function has run.

        Raises:
            StratagemError: The first error of functions scheduled before; it may also be any other exception that a
                function raised.
            StrategyError: The arguments cannot be sent to a worker.
        """
        with self._changed:
            function = self._function(fn, assign_to, add_to)
        closure = Closure(function, *copy_arguments(args, kwargs))
        with self._changed:
            self._wait(lambda: not self._dispatch.is_full or self._dispatch.has_failed, "schedule")
            self._raise_error()
            number = next(self._numbers)
            self._closures[number] = closure
            self._carry_out(self._dispatch.schedule(number))
        return closure.value

    def join(self) -> None:
        """Wait until all scheduled functions have run.

        Raises:
            StratagemError: The first error of a function; it may also be any other exception that one raised.
        """
        with self._changed:
            self._wait(lambda: self._dispatch.is_done, "join")
            self._raise_error()

    def done(self) -> bool:
        """Return whether all scheduled functions have run. Raise the same errors as `join`."""
        with self._changed:
            self._raise_error()
            return self._dispatch.is_done

    def fetch(self, value: Any) -> Any:
        """Wait for a `RemoteValue`, or for all those in a tree, and return the results in their places."""
        return jax.tree.map(
            lambda leaf: leaf.fetch() if isinstance(leaf, RemoteValue) else leaf,
            value,
            is_leaf=lambda leaf: isinstance(leaf, RemoteValue),
        )

    # Data.

    def create_per_worker_dataset(self, function: str) -> PerWorkerDataset:
        """Create a dataset that each worker makes for itself, by a function of a module that it was started with.

        A worker that was lost and has come back makes it anew.

        Args:
            function: `module:function`. The function is called without arguments or, if it takes one, with an
                `InputContext`, and returns an iterable of batches: dictionaries, tuples, lists and arrays. Start the
                workers with `--allow-import module`.
        """
        places = {worker: number for number, worker in enumerate(self._workers)}
        dataset = PerWorkerDataset(function, places)
        self._datasets.append(dataset)
        return dataset

    # Life.

    def close(self) -> None:
        """Cancel the queue and release the workers. May be called twice."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._carry_out(self._dispatch.close())
            workers = self._dispatch.workers
        for dataset in self._datasets:
            for worker in workers:
                with contextlib.suppress(StratagemError):  # the worker is gone, and its datasets with it
                    dataset.close(self._session.peers[worker], _FAREWELL_SECONDS)
        if self._owns_session:
            self._session.close()
        until = time.monotonic() + _FAREWELL_SECONDS
        for thread in self._threads:  # a thread in the middle of a call ends when the call does
            thread.join(max(0.0, until - time.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self.join()
        finally:
            self.close()

    # What the caller's thread does: all of it, except waiting, under `_changed`.

    def _function(self, fn: Callable[..., Any], assign_to: Any, add_to: Any) -> RemoteFunction:
        """Return the function as programs, which are cached for when it is scheduled again."""
        key = (fn, _key(assign_to), _key(add_to))
        if key not in self._functions:
            self._functions[key] = self._session.function(fn, self._workers[0], assign_to, add_to)
            if len(self._functions) > _MOST_FUNCTIONS:
                self._functions.popitem(last=False)
        self._functions.move_to_end(key)
        return self._functions[key]

    def _wait(self, is_met: Callable[[], bool], caller: str) -> None:
        while not self._changed.wait_for(lambda: is_met() or self._is_closed, LOG_EVERY):
            missing = ", ".join(sorted(set(self._workers) - self._dispatch.workers))
            _log.warning(
                "%s waits: %d closures are queued, %d run on %d of %d workers%s",
                caller,
                self._dispatch.queue_length,
                len(self._dispatch.running),
                len(self._dispatch.workers),
                len(self._workers),
                f"; missing: {missing}" if missing else "",
            )
        if self._is_closed:
            raise ClosureCancelled("the coordinator is closed: make a new one to schedule more")

    def _raise_error(self) -> None:
        error = self._dispatch.take_error()
        if error is not None:
            raise error

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case RunClosure(worker, number):
                    self._assignments[worker] = number
                case FailClosure(number, error):
                    self._closures.pop(number).value.fail(error)
                case CancelClosure(number):
                    self._closures.pop(number).value.fail(
                        ClosureCancelled(
                            "the closure was cancelled: another one failed before it could run, or the coordinator was "
                            "closed. join() raises that failure; schedule the closure again if it is still wanted"
                        )
                    )
        self._changed.notify_all()

    # What the thread of a worker does.

    def _serve_worker(self, worker: str) -> None:
        while self._wait_for_worker(worker):
            with self._changed:
                self._carry_out(self._dispatch.add_worker(worker))
            while (number := self._next_closure(worker)) is not None:
                with DAEMON_WORK:
                    is_alive = self._run(worker, number)
                if not is_alive:
                    break  # wait until the worker comes back

    def _wait_for_worker(self, worker: str) -> bool:
        """Wait for a worker; return False if the coordinator was closed or the worker cannot be used."""
        while not self._is_closed:
            try:
                self._session.peers[worker].call("ping", timeout=_PING_SECONDS)
            except (TaskUnreachable, TaskLost, DeadlineExceeded) as error:
                if not self._is_closed:
                    _log.warning("waiting for %s: %s", worker, error)
                with self._changed:  # a closed session fails at once, again and again
                    self._changed.wait_for(lambda: self._is_closed, _PAUSE_SECONDS)
            except StratagemError as error:  # another secret or another version, for example
                _log.error("%s cannot be used: %s", worker, error)
                return False
            else:
                return True
        return False

    def _next_closure(self, worker: str) -> int | None:
        """Wait for a closure for this worker; return `None` if the coordinator was closed."""
        with self._changed:
            self._changed.wait_for(lambda: worker in self._assignments or self._is_closed)
            return None if self._is_closed else self._assignments.pop(worker)

    def _run(self, worker: str, number: int) -> bool:
        """Run a closure on a worker; return whether the worker is still there."""
        closure = self._closures[number]
        try:
            function = closure.function.at(worker, self._timeout, wait=False)
            value = function(*closure.args, **closure.kwargs)
        except Exception as error:  # noqa: BLE001  a user's function may raise anything while it is traced
            has_died = is_lost(self._session.peers[worker], error)
            with self._changed:
                if has_died:
                    _log.warning(
                        "%s is lost; the closure that it ran is put back into the queue: %s", worker, error
                    )
                    self._carry_out(self._dispatch.remove_worker(worker))
                else:
                    self._closures.pop(number).value.fail(error)
                    self._carry_out(self._dispatch.fail(worker, error))
            return not has_died
        with self._changed:
            self._closures.pop(number).value.settle(value)
            self._carry_out(self._dispatch.finish(worker))
        return True


def _key(variables: RemoteVariable | Sequence[RemoteVariable]) -> Any:
    return variables if isinstance(variables, RemoteVariable) else tuple(variables)


def _session(strategy: ParameterServerStrategy | Session | None) -> tuple[Session, bool]:
    """Return the session to work with, and whether the coordinator owns it."""
    if isinstance(strategy, Session):
        return strategy, False
    if isinstance(strategy, ParameterServerStrategy):
        return strategy.session, False
    if strategy is not None:
        raise StrategyError(
            f"a ClusterCoordinator takes a ParameterServerStrategy with replication='in-graph', or a Session; not "
            f"{type(strategy).__name__}"
        )
    config = resolve_cluster()
    if config is None:
        raise ClusterError(
            f"neither flags nor TF_CONFIG describe a cluster: start it with {how_to_start(None, single_client=True)}, or give "
            "the coordinator a Session"
        )
    job = "ps" if "ps" in config.cluster.jobs else "worker"
    if job not in config.cluster.jobs:
        raise ClusterError(
            f"the cluster has neither ps nor worker tasks, only {', '.join(config.cluster.jobs)}"
        )
    index = config.cluster.task_indices(job)[0]
    return Session(f"sg://{config.cluster.task_address(job, index)}"), True
