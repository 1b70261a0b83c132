"""Cuts of one server's part of a model: written by a thread of its own, while training goes on."""

import queue
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from stratagem.errors import DeadlineExceeded
from stratagem.keep import Cuts, ShardRecord, write_shard
from stratagem.parameters.config import StoreConfig
from stratagem.runtime.daemon_work import DAEMON_WORK
from stratagem.runtime.wire.arrays import Array

KEPT_CUTS = 2
"""How many cuts stay: if the newest cannot be read, the one before it is used."""


def shard_name(server: int) -> str:
    """The name of a server's shard in every cut."""
    return f"ps-{server}"


class _Order(NamedTuple):
    """Values to write, and who is to be told."""

    step: int
    values: Sequence[Array]
    future: "Future[ShardRecord]"


class CutWriter:
    """Writes the shards of one server, one after the other.

    Args:
        config: The model's part.
        cuts: Where they go.

    Attributes:
        cuts: See above.
    """

    def __init__(self, config: StoreConfig, cuts: Cuts) -> None:
        self._config = config
        self.cuts = cuts
        self._futures: dict[int, Future[ShardRecord]] = {}
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_all, name="stratagem-cuts", daemon=True)
        self._thread.start()

    def write(self, step: int, values: Sequence[Array]) -> None:
        """Take over copies of all values, and write them soon."""
        with self._lock:
            if step in self._futures and (self._futures[step].running() or self._futures[step].done()):
                del self._futures[step]  # it was ordered before, and is now once more
        future = self._future(step)
        future.set_running_or_notify_cancel()
        self._waiting.put(_Order(step, values, future))

    def written(self, step: int, seconds: float) -> ShardRecord:
        """The record of a shard, once it is written.

        Raises:
            KeepError: It could not be.
            DeadlineExceeded: It is not, so far.
        """
        try:
            return self._future(step).result(seconds)
        except TimeoutError:
            raise DeadlineExceeded(f"the cut of step {step} was not written within {seconds:g} s") from None

    def forget(self) -> None:
        """Steps begin again from an earlier one: what was written of later ones counts no more."""
        with self._lock:
            self._futures.clear()

    def close(self) -> None:
        """Write no more than what is being written."""
        self._waiting.put(None)

    def _future(self, step: int) -> Future[ShardRecord]:
        with self._lock:
            for old in sorted(self._futures)[:-KEPT_CUTS]:
                del self._futures[old]
            return self._futures.setdefault(step, Future())

    def _write_all(self) -> None:
        while (order := self._waiting.get()) is not None:
            with DAEMON_WORK:
                try:
                    order.future.set_result(self._write(order.step, order.values))
                except BaseException as error:  # noqa: BLE001  told to whoever waits for it
                    order.future.set_exception(error)
                del order

    def _write(self, step: int, values: Sequence[Array]) -> ShardRecord:
        arrays: Mapping[str, Any] = {
            held.name: value for held, value in zip(self._config.held, values, strict=True)
        }
        return write_shard(self.cuts.directory(step), shard_name(self._config.server), arrays)
