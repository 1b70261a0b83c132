"""One server's part of one model, with all that belongs to it: values, programs, its shards of snapshots and checkpoints."""

import logging
import queue
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path

import jax
import numpy as np

from stratagem.errors import DeadlineExceeded, KeepError, LimitExceeded, RolledBack, StrategyError
from stratagem.keep import ShardRecord, Snapshots, read_shard, write_shard
from stratagem.parameters import protocol
from stratagem.parameters.exchanges import Label, beside, standing_for
from stratagem.parameters.protocol import StoreConfig
from stratagem.parameters.store import Lead, Store
from stratagem.parameters.table_part import TableBase
from stratagem.runtime.exits import DAEMON_WORK
from stratagem.runtime.memory import physical_memory
from stratagem.runtime.programs import ProgramCache
from stratagem.runtime.programs.summary import TensorSpec
from stratagem.runtime.programs.verification import content_hash
from stratagem.runtime.wire import Fields
from stratagem.runtime.wire.arrays import Array
from stratagem.tables.table_files import PREFIX

_log = logging.getLogger("stratagem")
KEPT_SNAPSHOTS = 2
"""The number of snapshots that stay: if the newest cannot be read, the one before it is used."""


def shard_name(server: int) -> str:
    """Return the name of a server's shard in every snapshot."""
    return f"ps-{server}"


class SnapshotWriter:
    """Writes the shards of one server, one after the other, in a thread of its own, while training goes on.

    Args:
        root: The directory of all snapshots, or of all checkpoints.
    """

    def __init__(self, config: StoreConfig, root: str) -> None:
        self._config = config
        self.snapshots = Snapshots(root)  # the snapshots in that directory
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

    def wait_for_record(self, step: int, seconds: float) -> ShardRecord:
        """Return the record of a shard, once it is written.

        Raises:
            KeepError: It could not be written.
            DeadlineExceeded: It is not written so far.
        """
        try:
            return self._future(step).result(seconds)
        except TimeoutError:
            raise DeadlineExceeded(
                f"the snapshot of step {step} was not written within {seconds:g} s"
            ) from None

    def forget(self) -> None:
        """Forget all shards: steps begin again from an earlier one, and those of later steps count no more."""
        with self._lock:
            self._futures.clear()

    def close(self) -> None:
        """Write nothing more, but what is being written."""
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


class ModelPart:
    """A model's part on this server, from the moment that a worker has described it."""

    def __init__(self, config: StoreConfig, programs: ProgramCache, device: jax.Device, lead: Lead) -> None:
        if config.nbytes > physical_memory():
            raise LimitExceeded(
                f"{config.nbytes} bytes of model {config.name!r} are more than the {physical_memory()} bytes of memory on "
                f"{config.servers[config.server]}: spread it over more servers"
            )
        self.config = config
        self.store: Store | None = None  # its values; `None` until the programs are here
        self._lead = lead
        self._snapshot_root = f"{config.snapshot_dir}/{config.name}"
        self._writers: dict[str, SnapshotWriter] = {}
        self._opening = threading.Lock()
        if config.snapshot_dir is not None:
            self._writers[self._snapshot_root] = SnapshotWriter(config, self._snapshot_root)
        self._agreed: dict[Label, list[Array]] = {}
        self._base: TableBase | None = None
        self._programs = programs
        self._device = device

    # Programs.

    def missing(self) -> list[str]:
        """Return the hashes of the programs that have not been shipped here; make the store once all are."""
        if self.store is not None:
            return []
        config = self.config
        of_tables = [each for stack in config.tables for each in (*stack.first, *stack.update)]
        hashes = dict.fromkeys([config.update, config.partials, config.combine, *of_tables])
        hashes.pop("", None)
        programs = {
            hash_: program
            for hash_ in hashes
            if (program := self._programs.find(hash_, self._donated(hash_), self._device)) is not None
        }
        if len(programs) == len(hashes):
            snapshot = None if config.snapshot_dir is None else self._snapshot
            store = Store(config, programs, self._device, self._lead, snapshot)
            name = f"{shard_name(config.server)}-rows"
            if config.tables:
                self._base = TableBase(store.tables, Path(self._snapshot_root, name), name)
            self.store = store
        return [hash_ for hash_ in hashes if hash_ not in programs]

    def ship(self, artifact: bytes) -> None:
        """Take a program in, and compile it."""
        self._programs.load(artifact, self._donated(content_hash(artifact)), self._device)

    def _donated(self, hash_: str) -> tuple[int, ...]:
        return tuple(range(len(self.config.arrays))) if hash_ == self.config.update else ()

    @property
    def has_values(self) -> bool:
        """True if it is being trained, or is about to be."""
        return self.store is not None and self.store.epoch is not None

    @property
    def filled(self) -> Store:
        """The store.

        Raises:
            StrategyError: A program was not shipped.
        """
        if self.store is None:
            raise StrategyError(f"model {self.config.name!r} has no programs here yet: describe it first")
        return self.store

    def opened(self, epoch: str) -> Store:
        """Return the store, for a caller that knows the present stretch of history.

        Raises:
            RolledBack: The caller knows another one, or there are no values.
        """
        store = self.store
        if store is None or store.epoch is None or store.epoch != epoch:
            raise RolledBack("this server is not, or no longer, at what the worker knows of")
        return store

    # What server 0, or the chief, asks of every server.

    def obey(self, call: str, fields: Fields, seconds: float) -> Fields:
        """Carry out a call, within this time if it waits for a disk, and return the answer."""
        match call:
            case protocol.BEGIN:
                self._agreed = {}
                self.filled.begin(fields["epoch"])
            case protocol.RESTORE:
                reached, problem = self.filled.version, ""
                try:
                    self._restore(fields["step"], ShardRecord.from_dict(fields["record"]))
                except KeepError as error:
                    problem = str(error)
                return {"reached": reached, "problem": problem}
            case protocol.TAKE:
                self._take(fields["token"], fields["step"], fields["is_anew"])
            case protocol.MARK:
                self.opened(fields["epoch"])
                self._mark(tuple(fields["label"]), fields["step"])
            case protocol.SNAPSHOT if fields["now"]:
                self._snapshot(fields["step"], self._copies(fields["step"]))
            case protocol.SNAPSHOT:
                return {"record": self.writer.wait_for_record(fields["step"], seconds).to_dict()}
            case protocol.FORGET:
                for step in fields["steps"]:
                    self.writer.snapshots.remove(step)
            case protocol.KEEP:
                self.opened(fields["epoch"])
                return {"is_reached": self._keep(fields["root"], fields["step"])}
            case protocol.RECORD:
                return self._record_of(fields["root"], fields["step"])
        return {}

    @property
    def writer(self) -> SnapshotWriter:
        """Writes the snapshots of this server.

        Raises:
            KeepError: There are none.
        """
        if self._snapshot_root not in self._writers:
            raise KeepError("there is no snapshot_dir, so there are no snapshots")
        return self._writers[self._snapshot_root]

    def _mark(self, label: Label, step: int) -> None:
        """Keep the parameters of this step for all who ask for them under a label."""
        labels = beside(self._agreed, label)
        # Before the new ones are made: three copies at a time would be one too many.
        agreed = {each: self._agreed[each] for each in labels if each in self._agreed and each != label}
        self._agreed = agreed
        # For nobody, if the servers go back meanwhile.
        agreed[label] = self._copies(step, len(self.config.leaves))

    def agreed_values(self, label: Label) -> tuple[Label, list[Array]]:
        """Return the label that stands for this one, and the parameters that are kept under it.

        Raises:
            RolledBack: There are none, or the servers have gone back since.
        """
        agreed = self._agreed
        known = standing_for(agreed, label)
        if known is None:
            raise RolledBack("no parameters are kept here for all workers to look at")
        return known, agreed[known]

    def _copies(self, step: int, count: int | None = None) -> list[Array]:
        """Return copies of all values, or of the first `count`, as they are at a step."""
        takes_part = self.config.server in self.config.participants
        version, views, release = self.filled.read(step if takes_part else 0, everything=True)
        try:
            if takes_part and version != step:
                raise RolledBack(
                    f"values of step {step} were asked for, and they are of step {version} by now"
                )
            return [np.array(view) for view in views[:count]]
        finally:
            release()

    def _snapshot(self, step: int, values: list[Array]) -> None:
        """Write copies of all values, and the rows that have changed, soon."""
        rows = {} if self._base is None else self._base.differences()
        self.writer.write(step, {**self._named(values), **rows}, self._base)

    def _named(self, values: list[Array]) -> dict[str, Array]:
        return dict(zip((each.name for each in self.config.arrays), values, strict=True))

    def _restore(self, step: int, record: ShardRecord) -> None:
        """Go back to a snapshot.

        Raises:
            KeepError: It cannot be read here, or is of another model.
        """
        directory = self.writer.snapshots.path(step)
        self.filled.close()
        arrays: Mapping[str, Array] = read_shard(directory, record)
        wanted = {each.name: each.spec for each in self.config.arrays}
        present = {
            name: TensorSpec(array.shape, str(array.dtype))
            for name, array in arrays.items()
            if not name.startswith(PREFIX)
        }
        if present != wanted:
            missing, more = sorted(wanted.keys() - present), sorted(present.keys() - wanted)
            both = [name for name in wanted if name in present and present[name] != wanted[name]]
            wrong = [f"{name} is {present[name]} instead of {wanted[name]}" for name in both]
            raise KeepError(
                f"{directory} is of another model: it lacks {missing[:5]}, has {more[:5]} besides, and {wrong[:5]}; "
                "give this job a snapshot_dir of its own, or remove that one"
            )
        self.writer.forget()
        self.filled.fill(step, [arrays[each.name] for each in self.config.arrays])
        if self._base is not None:
            self._base.restore(arrays, step, directory)

    def _take(self, token: str, step: int, is_anew: bool) -> None:
        """Set values that were prepared; see `Store.take`."""
        if is_anew and self.config.snapshot_dir is not None:
            self.writer.forget()
        if is_anew and self._base is not None:
            self._base.forget()
        # A server that has no part in updates is at no step.
        takes_part = is_anew or self.config.server in self.config.participants
        has_rows = self.filled.take(token, step if takes_part else 0, is_anew)
        if has_rows and self._base is not None:
            self._base.forget()  # before the next snapshot is decided

    # Checkpoints.

    def _keep(self, root: str, step: int) -> bool:
        """Write the present values into a checkpoint, soon; return whether its directory can be reached from here.

        Args:
            root: The directory of all checkpoints. The chief has made that of this one in it.
            step: The global step, at which all servers stand still.

        Raises:
            RolledBack: They have gone on.
        """
        if not Snapshots(root).path(step).is_dir():
            return False
        with self._opening:  # an earlier start of the chief may ask for the same
            if root not in self._writers:
                self._writers[root] = SnapshotWriter(self.config, root)
        self._writers[root].write(step, {**self._named(self._copies(step)), **self.filled.tables.copies()})
        return True

    def _record_of(self, root: str, step: int) -> Fields:
        """Return the record of this server's shard in a checkpoint, if it is written by now.

        Raises:
            RolledBack: Nobody asked for it, or this server was started again since.
        """
        if root not in self._writers:
            raise RolledBack(f"this server was not asked to write anything into {root}")
        try:
            return {"record": self._writers[root].wait_for_record(step, protocol.PATIENCE).to_dict()}
        except DeadlineExceeded:
            return {protocol.STATE: protocol.PENDING}

    def close(self) -> None:
        """End its threads."""
        for writer in self._writers.values():
            writer.close()
