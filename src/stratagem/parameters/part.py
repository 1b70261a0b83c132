"""One server's part of one model, with all that belongs to it: values, programs, snapshots."""

import threading
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np

from stratagem.errors import DeadlineExceeded, KeepError, LimitExceeded, RolledBack, StrategyError
from stratagem.keep import ShardRecord, Snapshots, read_shard
from stratagem.parameters import protocol
from stratagem.parameters.agreements import Label, beside, standing_for
from stratagem.parameters.config import StoreConfig
from stratagem.parameters.snapshot_writer import SnapshotWriter, shard_name
from stratagem.parameters.store import Lead, Store
from stratagem.parameters.table_base import TableBase
from stratagem.runtime.memory import physical_memory
from stratagem.runtime.programs import ProgramCache
from stratagem.runtime.programs.summary import TensorSpec
from stratagem.runtime.programs.verification import content_hash
from stratagem.runtime.wire import Fields
from stratagem.runtime.wire.arrays import Array
from stratagem.tables.table_files import PREFIX


class ModelPart:
    """A model's part on this server, from the moment that a worker has told of it.

    Args:
        config: What it is.
        programs: Programs that workers have shipped.
        device: Where it lives.
        lead: Who decides for all servers.

    Attributes:
        store: Its values; `None` until the programs are here.
    """

    def __init__(self, config: StoreConfig, programs: ProgramCache, device: jax.Device, lead: Lead) -> None:
        if config.nbytes > physical_memory():
            raise LimitExceeded(
                f"{config.nbytes} bytes of model {config.name!r} are more than the {physical_memory()} bytes of memory on "
                f"{config.servers[config.server]}: spread it over more servers"
            )
        self.config = config
        self.store: Store | None = None
        self._lead = lead
        self._snapshot_root = f"{config.snapshot_dir}/{config.name}"
        self._writers: dict[str, SnapshotWriter] = {}
        self._opening = threading.Lock()
        if config.snapshot_dir is not None:
            self._writers[self._snapshot_root] = SnapshotWriter(config, self._snapshot_root)
        self._marked: dict[Label, list[Array]] = {}
        self._base: TableBase | None = None
        self._programs = programs
        self._device = device

    # Programs.

    def missing(self) -> list[str]:
        """The hashes of the programs that have not been shipped here; makes the store once all are."""
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
        return tuple(range(len(self.config.held))) if hash_ == self.config.update else ()

    @property
    def has_values(self) -> bool:
        """Whether it is being trained, or has been told to begin."""
        return self.store is not None and self.store.epoch is not None

    @property
    def filled(self) -> Store:
        """The store.

        Raises:
            StrategyError: A program is missing: it was not shipped.
        """
        if self.store is None:
            raise StrategyError(f"model {self.config.name!r} has no programs here yet: found it first")
        return self.store

    def opened(self, epoch: str) -> Store:
        """The store, for one who knows the present stretch of history.

        Raises:
            RolledBack: The caller knows another one, or there are no values.
        """
        store = self.store
        if store is None or store.epoch is None or store.epoch != epoch:
            raise RolledBack("this server is not, or no longer, at what the worker knows of")
        return store

    # What server 0, or the chief, asks of every server.

    def obey(self, call: str, fields: Fields, seconds: float) -> Fields:
        """Carry out a call, within so many seconds if it waits for a disk; what to answer."""
        match call:
            case protocol.BEGIN:
                self._marked = {}
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
                return {"record": self.writer.written(fields["step"], seconds).to_dict()}
            case protocol.FORGET:
                for step in fields["steps"]:
                    self.writer.snapshots.remove(step)
            case protocol.KEEP:
                self.opened(fields["epoch"])
                return {"is_reached": self._keep(fields["root"], fields["step"])}
            case protocol.KEPT:
                return self._kept(fields["root"], fields["step"])
        return {}

    @property
    def writer(self) -> SnapshotWriter:
        """Writes the snapshots of this server.

        Raises:
            KeepError: There are none.
        """
        if self._snapshot_root not in self._writers:
            raise KeepError("there is no snapshot_dir, so there are no cuts")
        return self._writers[self._snapshot_root]

    def _mark(self, label: Label, step: int) -> None:
        """Keep the parameters of this step for all who ask for them under a label."""
        kept = beside(self._marked, label)
        # Before the new ones are made: three copies at a time would be one too many.
        marked = {each: self._marked[each] for each in kept if each in self._marked and each != label}
        self._marked = marked
        marked[label] = self._copies(
            step, len(self.config.leaves)
        )  # for nobody, if the servers go back meanwhile

    def marked(self, label: Label) -> tuple[Label, list[Array]]:
        """The label that stands for this one, and the parameters that are kept under it.

        Raises:
            RolledBack: There are none, or the servers have gone back since.
        """
        marked = self._marked
        known = standing_for(marked, label)
        if known is None:
            raise RolledBack("no parameters are kept here for all workers to look at")
        return known, marked[known]

    def _copies(self, step: int, count: int | None = None) -> list[Array]:
        """Copies of all values, or of so many of the first, as they are at a step."""
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
        """Write copies of all values, and what has changed of rows, soon."""
        rows = {} if self._base is None else self._base.differences()
        self.writer.write(step, {**self._named(values), **rows}, self._base)

    def _named(self, values: list[Array]) -> dict[str, Array]:
        return dict(zip((held.name for held in self.config.held), values, strict=True))

    def _restore(self, step: int, record: ShardRecord) -> None:
        """Go back to a snapshot.

        Raises:
            KeepError: It cannot be read here, or is of another model.
        """
        directory = self.writer.snapshots.path(step)
        self.filled.close()
        arrays: Mapping[str, Array] = read_shard(directory, record)
        wanted = {held.name: held.spec for held in self.config.held}
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
        self.filled.fill(step, [arrays[held.name] for held in self.config.held])
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
        """Write the present values into a checkpoint, soon; whether its directory can be reached from here.

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

    def _kept(self, root: str, step: int) -> Fields:
        """The record of this server's shard in a checkpoint, if it is written by now.

        Raises:
            RolledBack: Nobody asked for it, or this server was started again since.
        """
        if root not in self._writers:
            raise RolledBack(f"this server was not told to write anything into {root}")
        try:
            return {"record": self._writers[root].written(step, protocol.PATIENCE).to_dict()}
        except DeadlineExceeded:
            return {protocol.STATE: protocol.PENDING}

    def close(self) -> None:
        """End its threads."""
        for writer in self._writers.values():
            writer.close()
