"""One server's shards of snapshots and checkpoints: written by a thread of its own, while training goes on."""

import logging
import queue
import threading
from collections.abc import Mapping
from concurrent.futures import Future

from stratagem.errors import DeadlineExceeded, KeepError
from stratagem.keep import ShardRecord, Snapshots, write_shard
from stratagem.parameters.config import StoreConfig
from stratagem.parameters.table_base import TableBase
from stratagem.runtime.exits import DAEMON_WORK
from stratagem.runtime.wire.arrays import Array

_log = logging.getLogger("stratagem")
KEPT_SNAPSHOTS = 2
"""How many snapshots stay: if the newest cannot be read, the one before it is used."""


def shard_name(server: int) -> str:
    """The name of a server's shard in every snapshot."""
    return f"ps-{server}"


class SnapshotWriter:
    """Writes the shards of one server, one after the other.

    Args:
        config: The model's part.
        root: The directory of all snapshots, or of all checkpoints.

    Attributes:
        snapshots: Those that are there.
    """

    def __init__(self, config: StoreConfig, root: str) -> None:
        self._config = config
        self.snapshots = Snapshots(root)
        self._futures: dict[int, Future[ShardRecord]] = {}
        self._lock = threading.Lock()
        self._orders: queue.SimpleQueue[
            tuple[int, Mapping[str, Array], Future[ShardRecord], TableBase | None] | None
        ]
        self._orders = queue.SimpleQueue()
        threading.Thread(target=self._write_all, name="stratagem-snapshots", daemon=True).start()

    def write(self, step: int, values: Mapping[str, Array], base: TableBase | None = None) -> None:
        """Take over copies of all values, by name, and write them soon; rows among them are changes since a base."""
        with self._lock:
            if step in self._futures and (self._futures[step].running() or self._futures[step].done()):
                del self._futures[step]  # it was ordered before, and is now once more
        future = self._future(step)
        future.set_running_or_notify_cancel()
        self._orders.put((step, values, future, base))

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
        self._orders.put(None)

    def _future(self, step: int) -> Future[ShardRecord]:
        with self._lock:
            for old in sorted(self._futures)[:-KEPT_SNAPSHOTS]:
                del self._futures[old]
            return self._futures.setdefault(step, Future())

    def _write_all(self) -> None:
        while (order := self._orders.get()) is not None:
            with DAEMON_WORK:
                self._write(*order)
            del order  # and with it the copies, before the next one comes

    def _write(
        self, step: int, values: Mapping[str, Array], future: Future[ShardRecord], base: TableBase | None
    ) -> None:
        try:
            directory = self.snapshots.directory(step)
            if base is not None:
                base.link(values, directory)
            future.set_result(write_shard(directory, shard_name(self._config.server), values))
        except BaseException as error:  # noqa: BLE001  told to whoever waits for it
            future.set_exception(error)
            return
        if base is not None:
            try:
                base.renew_if_due(values)
            except KeepError as error:
                _log.warning("snapshots of tables go on growing: %s", error)
