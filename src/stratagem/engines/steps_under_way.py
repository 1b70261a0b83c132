"""Steps in which XLA waits for other workers: begun one after the other, and given up once the group has lost a worker."""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, Final, TypeVar

import jax

from stratagem.collectives import Group, GroupOptions
from stratagem.devices.global_arrays import local_copy
from stratagem.engines.engine import Step
from stratagem.errors import RemoteError, StratagemError
from stratagem.runtime.exits import DAEMON_WORK
from stratagem.runtime.wire.error_translation import first_line
from stratagem.waist import Metrics, TrainState

T = TypeVar("T")
_LOOK_SECONDS: Final = 0.2
"""Between two checks that the group is still whole, while XLA is busy."""
_MOST_UNDER_WAY: Final = 2
"""How many steps begin before the first of them is waited for, so that the devices always have the next one."""


class StepsUnderWay:
    """Begins steps, and waits for them, in a thread of its own, while the caller watches the group.

    A step may last for ever if another worker vanishes without a word. It must hold up neither the caller nor the end of
    the process, so the thread is a daemon.

    Args:
        group: The workers, which watch each other.
        options: How long they take to find out who is lost, and how long one that is alive may keep the others waiting.
    """

    def __init__(self, group: Group, options: GroupOptions) -> None:
        self._group = group
        self._options = options
        self._metrics: deque[Metrics] = deque()
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="stratagem-xla", daemon=True).start()

    def begin(self, step: Step, state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
        """Begin a step, and return as soon as XLA has it, unless too many are under way.

        Raises:
            WorkerLost: A worker is lost; an earlier step may still be waiting for it.
            RemoteError: XLA failed in an earlier step, though no worker is known to be lost.
        """
        after, metrics = self.run(partial(self._begin, step, state, batch))
        return after, AwaitedMetrics(metrics, self)

    def _begin(self, step: Step, state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
        if len(self._metrics) == _MOST_UNDER_WAY:
            jax.block_until_ready(self._metrics.popleft())
        after, metrics = step(state, batch)
        self._metrics.append(metrics)
        return after, metrics

    def finish(self) -> None:
        """Wait for all steps that have begun; if the group has ended, none of them will finish."""
        while self._metrics and not self._group.has_ended:
            self.ready(self._metrics.popleft())

    def ready(self, value: T) -> T:
        """Return what a step computes, once it is there. Raises the errors of `begin`."""
        if all(leaf.is_ready() for leaf in jax.tree.leaves(value)):
            return value
        result: T = self.run(partial(jax.block_until_ready, value))
        return result

    def run(self, call: Callable[[], T]) -> T:
        """Return what a call returns, which may wait for other workers inside XLA.

        Raises:
            WorkerLost: A worker is lost; the call may still be waiting for it.
            RemoteError: XLA failed, though no worker is known to be lost; or XLA has waited for longer than any worker
                may be waited for, though all of them answer.
        """
        future: Future[T] = Future()
        self._calls.put((call, future))
        began = time.monotonic()
        while not wait([future], _LOOK_SECONDS).done:
            self._group.check()
            if time.monotonic() - began > self._options.patience:
                raise RemoteError(
                    f"XLA has waited for other workers for {self._options.patience:g} s, though every one of them answers. "
                    "See what each is doing, for example with py-spy dump, and start all workers again"
                )
        try:
            return future.result()
        except StratagemError:
            raise
        except (RuntimeError, ValueError) as error:  # what XLA raises depends on which of its parts noticed
            self._group.check(self._options.timeout + 1)  # the group notices a loss in its own time
            raise RemoteError(
                f"XLA failed between workers, though every one of them answers: {first_line(error)}. Let all "
                "workers reach each other at any port, and train the same model with the same options"
            ) from error

    def _work(self) -> None:
        while True:
            call, future = self._calls.get()
            with DAEMON_WORK:  # a call that was given up mostly fails a moment later
                try:
                    future.set_result(call())
                except Exception as error:  # noqa: BLE001  raised again by the thread that asked
                    future.set_exception(error)
                del call, future  # or what they hold would live until the next ones come


class AwaitedMetrics(dict[str, Any]):
    """The metrics of a step; looking at one waits for it."""

    def __init__(self, metrics: Metrics, under_way: StepsUnderWay) -> None:
        super().__init__({name: local_copy(value) for name, value in metrics.items()})
        self._under_way = under_way

    def __getitem__(self, name: str) -> Any:
        return self._under_way.ready(super().__getitem__(name))

    def __iter__(self) -> Iterator[str]:
        # A copy of a dictionary that overrides this takes the values one by one, by `__getitem__`.
        return super().__iter__()

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def values(self) -> Any:
        return dict(self).values()

    def items(self) -> Any:
        return dict(self).items()

    def __repr__(self) -> str:
        return repr(dict(self))


def _flatten_with_keys(metrics: AwaitedMetrics) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
    names = tuple(sorted(metrics))
    return [(jax.tree_util.DictKey(name), metrics[name]) for name in names], names


def _unflatten(names: Sequence[str], values: Iterable[Any]) -> Any:
    return dict(zip(names, values, strict=True))  # what was computed from the metrics is not waited for


jax.tree_util.register_pytree_with_keys(AwaitedMetrics, _flatten_with_keys, _unflatten)
