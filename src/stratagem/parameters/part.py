"""One server's part of one model, with all that belongs to it: values, programs, cuts."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np

from stratagem.errors import KeepError, LimitExceeded, RolledBack, StrategyError
from stratagem.keep import Cuts, ShardRecord, read_shard
from stratagem.parameters.agreements import Label
from stratagem.parameters.config import StoreConfig
from stratagem.parameters.cutting import CutWriter
from stratagem.parameters.rules import Sync
from stratagem.parameters.store import Lead, Store
from stratagem.runtime.memory import physical_memory
from stratagem.runtime.programs import CompiledProgram, ProgramCache
from stratagem.runtime.programs.verification import content_hash
from stratagem.runtime.wire.arrays import Array


class ModelPart:
    """A model's part on this server, from the moment that a worker has told of it.

    Args:
        config: What it is.
        programs: Programs that workers have shipped.
        device: Where it lives.

    Attributes:
        store: Its values; `None` until the programs are here.
        lead: Who decides for all servers; to be set before anything else is done.
        cuts: Its cuts on disk, if there are to be any.
    """

    def __init__(self, config: StoreConfig, programs: ProgramCache, device: jax.Device) -> None:
        if config.nbytes > physical_memory():
            raise LimitExceeded(
                f"{config.nbytes} bytes of model {config.name!r} are more than the {physical_memory()} bytes of memory on "
                f"{config.servers[config.server]}: spread it over more servers"
            )
        self.config = config
        self.store: Store | None = None
        self._combine: CompiledProgram | None = None
        self.cuts = None if config.snapshot_dir is None else Cuts(f"{config.snapshot_dir}/{config.name}")
        self._writer = None if self.cuts is None else CutWriter(config, self.cuts)
        self.lead: Lead
        self._keepers: dict[str, CutWriter] = {}
        self._marked: tuple[str | None, Label, list[Array]] | None = None
        self._programs = programs
        self._device = device

    # Programs.

    def missing(self) -> list[str]:
        """The hashes of the programs that have not been shipped here; makes the store once all are."""
        if self.store is not None:
            return []
        found = {hash_: self._find(hash_) for hash_ in self._hashes()}
        missing = [hash_ for hash_, program in found.items() if program is None]
        if missing:
            return missing
        update, partials = found.get(self.config.update), found.get(self.config.partials)
        self._combine = found.get(self.config.combine)
        # Asynchronous pushes bring their commons with them: each is an update by itself.
        averages = isinstance(self.config.rule, Sync)
        self.store = Store(self.config, update, partials, averages, self._device, self.lead)
        return []

    def ship(self, artifact: bytes) -> None:
        """Take a program in, and compile it."""
        self._programs.load(artifact, self._donated(artifact), self._device)

    def _hashes(self) -> list[str]:
        names = (self.config.update, self.config.partials, self.config.combine)
        return [name for name in names if name]

    def _find(self, hash_: str) -> CompiledProgram | None:
        donate = range(len(self.config.held)) if hash_ == self.config.update else ()
        return self._programs.find(hash_, tuple(donate), self._device)

    def _donated(self, artifact: bytes) -> tuple[int, ...]:
        return tuple(range(len(self.config.held))) if content_hash(artifact) == self.config.update else ()

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

    def combined(self, partials: Sequence[Array]) -> list[Array]:
        """What the partials of all servers have in common; on server 0."""
        if self._combine is None:
            raise StrategyError(f"model {self.config.name!r} has nothing to combine here")
        return [np.asarray(array) for array in self._combine(partials, wait=True)]

    # Cuts.

    @property
    def kept(self) -> Cuts:
        """Its cuts on disk.

        Raises:
            KeepError: There are none.
        """
        if self.cuts is None:
            raise KeepError("there is no snapshot_dir, so there are no cuts")
        return self.cuts

    def cut(self, step: int, values: Sequence[Array]) -> None:
        """Write copies of the values, soon."""
        if self._writer is not None:
            self._writer.write(step, values)

    def cut_now(self, step: int) -> None:
        """Write the present values, as those of this step."""
        self.cut(step, self._copies(step))

    def mark(self, label: Label, step: int) -> None:
        """Keep the parameters of this step for all who ask for them under a label; what was kept before is forgotten."""
        self._marked = None  # two copies at a time would be one too many
        self._marked = self.filled.epoch, label, self._copies(step, len(self.config.leaves))

    def marked(self) -> tuple[Label, list[Array]]:
        """The label of the parameters that are kept, and these.

        Raises:
            RolledBack: There are none, or the servers have gone back since.
        """
        marked = self._marked
        if marked is None or marked[0] != self.filled.epoch:
            raise RolledBack("no parameters are kept here for all workers to look at")
        return marked[1:]

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

    def written(self, step: int, seconds: float) -> ShardRecord:
        """The record of this server's shard, once it is written."""
        if self._writer is None:
            raise KeepError("there is no snapshot_dir, so there are no cuts")
        return self._writer.written(step, seconds)

    def restore(self, step: int, record: ShardRecord) -> None:
        """Go back to a cut.

        Raises:
            KeepError: It cannot be read here, or is of another model.
        """
        directory = self.kept.path(step)
        self.filled.close()
        arrays: Mapping[str, Array] = read_shard(directory, record)
        missing = [held.name for held in self.config.held if held.name not in arrays]
        wrong = [
            f"{held.name} is {arrays[held.name].dtype}{list(arrays[held.name].shape)} instead of {held.spec}"
            for held in self.config.held
            if held.name in arrays
            and (arrays[held.name].shape, str(arrays[held.name].dtype)) != (held.spec.shape, held.spec.dtype)
        ]
        if missing or wrong or len(arrays) != len(self.config.held):
            more = sorted(set(arrays) - {held.name for held in self.config.held})
            raise KeepError(
                f"{directory} is of another model: it lacks {missing[:5]}, has {more[:5]} besides, and {wrong[:5]}; "
                "give this job a snapshot_dir of its own, or remove that one"
            )
        if self._writer is not None:
            self._writer.forget()
        self.filled.fill(step, [arrays[held.name] for held in self.config.held])

    def take(self, token: str, step: int, is_anew: bool) -> None:
        """Set values that were prepared; see `Store.take`."""
        if is_anew and self._writer is not None:
            self._writer.forget()
        # A server that has no part in updates is at no step.
        takes_part = is_anew or self.config.server in self.config.participants
        self.filled.take(token, step if takes_part else 0, is_anew)

    # Checkpoints.

    def keep(self, root: str, step: int) -> bool:
        """Write the present values into a checkpoint, soon; whether its directory can be reached from here.

        Args:
            root: The directory of all checkpoints. The chief has made that of this one in it.
            step: The global step, at which all servers stand still.

        Raises:
            RolledBack: They have gone on.
        """
        cuts = Cuts(root)
        if not cuts.path(step).is_dir():
            return False
        if root not in self._keepers:
            self._keepers[root] = CutWriter(self.config, cuts)
        self._keepers[root].write(step, self._copies(step))
        return True

    def kept_shard(self, root: str, step: int, seconds: float) -> ShardRecord:
        """The record of this server's shard in a checkpoint, once it is written.

        Raises:
            RolledBack: Nobody asked for it, or this server was started again since.
        """
        if root not in self._keepers:
            raise RolledBack(f"this server was not told to write anything into {root}")
        return self._keepers[root].written(step, seconds)

    def close(self) -> None:
        """End its threads."""
        for writer in (self._writer, *self._keepers.values()):
            if writer is not None:
                writer.close()
