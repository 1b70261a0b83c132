"""Steps in which XLA waits for other workers: begun one after the other, given up as soon as the group has lost one."""

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
from stratagem.devices.placing import local_copy
from stratagem.engines.engine import Step
from stratagem.errors import RemoteError, StratagemError
from stratagem.runtime.exits import DAEMON_WORK
from stratagem.runtime.wire.error_translation import first_line
from stratagem.waist import Metrics, TrainState

T = TypeVar("T")
_LOOK_SECONDS: Final = 0.2
"""Between two looks at whether the group is still whole, while XLA is busy."""
_MOST_UNDER_WAY: Final = 2
"""So many steps are begun before the first of them is waited for: the devices always have the next one."""


class StepsUnderWay:
    """Begins steps, and waits for them, in a thread of its own, while the caller watches the group.

    A step whose other end is gone without a word may last for ever. It must keep neither the caller nor the process, so
    the thread is a daemon.

    Args:
        group: The workers, who watch each other.
        options: How long they have to find out who is lost, and how long one that is alive may keep the others waiting.
    """

    def __init__(self, group: Group, options: GroupOptions) -> None:
        self._group = group
        self._options = options
        self._results: deque[Metrics] = deque()
        self._asked: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="stratagem-xla", daemon=True).start()

    def begin(self, step: Step, state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
        """Begin a step; the host goes on when XLA has it, unless too many are under way.

        Raises:
            WorkerLost: A worker is lost; an earlier step may still be waiting for it.
            RemoteError: XLA failed in an earlier step, for all that is known without a worker being lost.
        """
        after, metrics = self.run(partial(self._begin, step, state, batch))
        return after, AwaitedMetrics(metrics, self)

    def _begin(self, step: Step, state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
        if len(self._results) == _MOST_UNDER_WAY:
            jax.block_until_ready(self._results.popleft())
        after, metrics = step(state, batch)
        self._results.append(metrics)
        return after, metrics

    def finish(self) -> None:
        """Wait for all steps that have begun; none will be over if the group has come to an end."""
        while self._results and not self._group.has_ended:
            self.ready(self._results.popleft())

    def ready(self, value: T) -> T:
        """What a step has made, when it is there. Errors are those of `begin`."""
        if all(leaf.is_ready() for leaf in jax.tree.leaves(value)):
            return value
        waited: T = self.run(partial(jax.block_until_ready, value))
        return waited

    def run(self, call: Callable[[], T]) -> T:
        """What a call returns or raises, which may wait for other workers inside XLA.

        Raises:
            WorkerLost: A worker is lost; the call may still be waiting for it.
            RemoteError: XLA failed, for all that is known without a worker being lost; or all are there, and XLA waits
                for longer than any worker may be waited for.
        """
        future: Future[T] = Future()
        self._asked.put((call, future))
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
            self._group.check(self._options.timeout + 1)  # it hears of a loss in its own time
            raise RemoteError(
                f"XLA failed between workers, though every one of them answers: {first_line(error)}. Let all "
                "workers reach each other at any port, and train the same model with the same options"
            ) from error

    def _work(self) -> None:
        while True:
            call, future = self._asked.get()
            with DAEMON_WORK:  # a call that was given up mostly fails a moment later
                try:
                    future.set_result(call())
                except Exception as error:  # noqa: BLE001  raised again by the thread that asked
                    future.set_exception(error)
                del call, future  # or what they hold would live until the next ones come


class AwaitedMetrics(dict[str, Any]):
    """The metrics of a step, each waited for when it is looked at.

    Args:
        metrics: The metrics.
        under_way: Waits for them.
    """

    def __init__(self, metrics: Metrics, under_way: StepsUnderWay) -> None:
        super().__init__({name: local_copy(value) for name, value in metrics.items()})
        self._under_way = under_way

    def __getitem__(self, name: str) -> Any:
        return self._under_way.ready(super().__getitem__(name))

    def __iter__(self) -> Iterator[str]:
        # Whoever copies a dictionary that iterates in its own way takes the values one by one, as above.
        return super().__iter__()

    def get(self, name: str, default: Any = None) -> Any:
        """See `dict`."""
        try:
            return self[name]
        except KeyError:
            return default

    def values(self) -> Any:
        """See `dict`."""
        return dict(self).values()

    def items(self) -> Any:
        """See `dict`."""
        return dict(self).items()

    def __repr__(self) -> str:
        return repr(dict(self))


def _with_keys(metrics: AwaitedMetrics) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
    names = tuple(sorted(metrics))
    return [(jax.tree_util.DictKey(name), metrics[name]) for name in names], names


def _made_of(names: Sequence[str], values: Iterable[Any]) -> Any:
    return dict(zip(names, values, strict=True))  # nobody has to wait for what was made of them


jax.tree_util.register_pytree_with_keys(AwaitedMetrics, _with_keys, _made_of)
