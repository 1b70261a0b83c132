"""One server's part of a model: its values, the pushes that wait, and the update that joins them.

Updates are made in the order of the global step. Whoever learns of a decision carries it out, once.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import jax
import numpy as np

from stratagem.errors import ProtocolError, RolledBack, StrategyError
from stratagem.parameters.authority import Decision
from stratagem.parameters.protocol import ArrayConfig, StoreConfig
from stratagem.parameters.rules import APPLIED, COUNTED, Push
from stratagem.parameters.table_part import TablePart
from stratagem.parameters.versions import AveragedUpdate, Release, Versions, copies, weighted, weights
from stratagem.runtime.host_memory import host_view
from stratagem.runtime.programs import CompiledProgram
from stratagem.runtime.wire.arrays import Array
from stratagem.tables.table_files import NewRows

Key: TypeAlias = tuple[int, str, int]
_LOOK_EVERY = 1.0
_NOTHING: tuple[str, Mapping[int, Array], Callable[[bool], bool]] = "", {}, lambda goes_on: False
"""Prepared values: a token, the values by their places, and a function that takes the rows."""
_GONE_BACK = "the servers have gone back to an earlier step"


class Lead(ABC):
    """Server 0, which decides for all servers, as one of them sees it. Every call may raise `RolledBack`."""

    @abstractmethod
    def decide(self, epoch: str, push: Push, end: float, is_here: bool) -> tuple[Decision | None, list[str]]:
        """Wait for the decision about a push until the end; if there is none by then, return who is waited for.

        A push that is not here was decided before, and its worker did not get the answer; or it must be sent again.
        """

    @abstractmethod
    def update(self, epoch: str, step: int) -> Decision | None:
        """Return the decision that led to a step."""

    @abstractmethod
    def commons(self, epoch: str, step: int, partials: Sequence[Array]) -> Sequence[Array]:
        """Give this server's share of the commons of a step, and return the commons once all have given theirs."""

    @abstractmethod
    def broken(self, epoch: str, why: str) -> None:
        """Have all servers go back: this one cannot go on."""


@dataclass
class Staged:
    """A push that waits for its decision."""

    worker: int
    rows: int
    # Views of its worker's memory as long as the worker waits for the answer, copies afterwards.
    gradients: Sequence[Array]
    commons: Sequence[Array]  # the values that all gradients share, as its worker computed them
    tables: Sequence[Array] = ()  # ids and gradients of rows, for each stack of tables in turn


class Store:
    """The values of one model on one server.

    Args:
        programs: Those that the configuration names, by hash.
        snapshot: Takes copies of all values right after a step, if there are to be snapshots.
    """

    def __init__(
        self,
        config: StoreConfig,
        programs: Mapping[str, CompiledProgram],
        device: jax.Device,
        lead: Lead,
        snapshot: Callable[[int, list[Array]], None] | None,
    ) -> None:
        update, self._partials, self._combine = map(
            programs.get, (config.update, config.partials, config.combine)
        )
        self.config = config
        self.tables = TablePart(config.tables, programs)  # the rows of tables
        self._lead = lead
        self._snapshot = snapshot
        # Names the stretch of history since the last roll-back; `None` until there are values.
        self.epoch: str | None = None
        self._device = device
        self._update = (
            None if update is None else AveragedUpdate(update, len(config.arrays), len(config.leaves))
        )
        # Pushes that are updates by themselves bring their commons with them.
        averages = config.rule.averages_pushes
        self._shares_commons = averages and bool(config.commons)
        # The parameters after an update of several pushes go to several workers.
        self._versions = Versions(len(config.leaves), are_shared=averages)
        self._wanted = [(np.dtype(each.spec.dtype), each.spec.shape) for each in config.leaves]
        self._staged: dict[Key, Staged] = {}
        self._prepared = _NOTHING
        # With their epochs, since an update of a history that was given up may end later.
        self._under_way: set[tuple[str | None, int]] = set()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)

    # Values.

    @property
    def version(self) -> int:
        """The global step of the values."""
        return self._versions.step

    def fill(self, version: int, values: Sequence[Array]) -> None:
        """Take values, and forget all that was pushed before; readers get them after `begin`."""
        _check(values, self.config.arrays, "values")
        arrays = copies(values, self._device)
        with self._versions.replacing(), self._lock:
            self._versions.publish(version, arrays)
            self.tables.clear()
            self._forget_pushes()

    def prepare(self, token: str, values: Mapping[int, Array], rows: NewRows) -> None:
        """Keep new values, by their places in `StoreConfig.arrays`, until `take` of the same token; forget earlier ones."""
        arrays = self.config.arrays
        _check(list(values.values()), [arrays[index] for index in values], "values")
        take_rows = self.tables.prepare_rows(rows, self.config.server, len(self.config.servers))
        with self._lock:
            own = {index: np.array(value) for index, value in values.items()}
            self._prepared = token, own, take_rows

    def take(self, token: str, version: int, is_anew: bool) -> bool:
        """Let prepared values take the place of those that are here, all at once.

        Args:
            token: Of those that were prepared; empty if this server has nothing to change.
            version: The global step after which they are to be taken.
            is_anew: Whether history begins anew with them, at that step: all that was pushed before is forgotten,
                and readers get them after `begin`.

        Returns:
            Whether there are other rows of tables among them.

        Raises:
            RolledBack: They are not here, or the servers have gone back meanwhile.
        """
        if not is_anew:
            self.wait_for(version)
        has_rows = False
        with self._versions.replacing() as present, self._lock:
            known, values, take_rows = self._prepared
            if token and token != known:
                raise RolledBack("values that are to be taken were not prepared on this server")
            if token:
                for index, value in zip(values, copies(list(values.values()), self._device), strict=True):
                    present[index] = value
                has_rows = take_rows(not is_anew)
            self._versions.publish(version if is_anew else self.version, present)
            self._prepared = _NOTHING
            if is_anew:
                self._forget_pushes()
        return has_rows

    def _forget_pushes(self) -> None:
        self.close()
        self._under_way.clear()

    def begin(self, epoch: str) -> None:
        """Answer from now on, with the values that were filled in."""
        with self._lock:
            self.epoch = epoch

    def close(self) -> None:
        """Answer nothing more until it is filled again."""
        with self._lock:
            self.epoch = None
            self._staged.clear()
            self._changed.notify_all()

    def read(
        self, at_least: int = 0, everything: bool = False, is_far: bool = False
    ) -> tuple[int, Sequence[Array], Release]:
        """Return the newest version, once it is of this step or later; see `Versions.read`.

        Raises:
            RolledBack: The servers have gone back meanwhile.
        """
        epoch = self.epoch
        if self._versions.step < at_least:
            self.wait_for(at_least)
        version, views, release = self._versions.read(everything, is_far)
        if self.epoch != epoch:  # after an update that failed, what the views show may be gone
            release()
            raise RolledBack(_GONE_BACK)
        return version, views, release

    def wait_for(self, version: int) -> None:
        """Wait until the values are of this version or later.

        Raises:
            RolledBack: The servers have gone back meanwhile.
        """
        epoch = self.epoch
        while (before := self.version) < version:
            with self._lock:
                is_changed = self.version != before or self._changed.wait(_LOOK_EVERY)
                if self.epoch != epoch:
                    raise RolledBack(_GONE_BACK)
            if is_changed or self.version != before or epoch is None:
                continue
            # Make the next update: who should have may have lost its connection, or its worker.
            decision = self._lead.update(epoch, before + 1)
            if decision is not None and (epoch, before + 1) not in self._under_way:
                self.apply(decision)

    # Pushes.

    def stage(self, push: Push, tensors: Sequence[Array], tables: Sequence[Array] = ()) -> None:
        """Keep a push (gradients, then commons; ids and gradients of rows for each stack) until it is settled. One of no rows has none."""
        count = len(self._wanted)
        if push.rows or tensors:
            gradients = tensors[:count]
            if [(gradient.dtype, gradient.shape) for gradient in gradients] != self._wanted:
                _check(gradients, self.config.leaves, "gradients")
        if push.rows and (tables or self.config.tables):
            self.tables.check(tables)
        with self._lock:
            self._staged.setdefault(
                push[:3], Staged(push.worker, push.rows, tensors[:count], tensors[count:], tables)
            )

    def own(self, push: Push) -> None:
        """Copy the arrays of a push that is not applied yet: its worker is about to get its memory back."""
        with self._lock:
            staged = self._staged.get(push[:3])
            if staged is not None:
                staged.gradients = [_owned(array) for array in staged.gradients]
                staged.commons = [_owned(array) for array in staged.commons]
                staged.tables = [_owned(array) for array in staged.tables]
                while self._under_way:  # an update may have begun to read what the worker gets back
                    self._changed.wait(_LOOK_EVERY)

    def has(self, push: Push) -> bool:
        """Return whether a push waits here."""
        with self._lock:
            return push[:3] in self._staged

    def left_by_earlier_starts(self, push: Push) -> list[Push]:
        """Return the pushes that wait here and came from earlier starts of a push's worker."""
        worker, incarnation = push[:2]
        with self._lock:
            return [
                Push(*key, base=0, rows=0)
                for key in self._staged
                if key[0] == worker and key[1] != incarnation
            ]

    def settle(self, push: Push, decision: Decision) -> None:
        """Carry out the decision about a push.

        Raises:
            RolledBack: The servers have gone back meanwhile.
        """
        if decision.kind == COUNTED:
            self.own(push)
            return
        if decision.kind == APPLIED:
            self.apply(decision)
        if push[:3] in self._staged:  # dropped, or sent again after it was applied
            with self._lock:
                self._staged.pop(push[:3], None)

    # Updates.

    def apply(self, decision: Decision) -> None:
        """Make an update, after those before it; return when this thread or another has made it.

        Raises:
            RolledBack: The servers have gone back meanwhile.
        """
        step, epoch = decision.step, self.epoch
        if self._versions.step < step - 1:
            self.wait_for(step - 1)
        with self._lock:
            if self.epoch != epoch:
                raise RolledBack(_GONE_BACK)
            is_mine = self._versions.step < step and (epoch, step) not in self._under_way
            if is_mine:
                self._under_way.add((epoch, step))
                pushes = {push: self._staged.get(push[:3]) for push in decision.pushes}
        if not is_mine:
            self.wait_for(step)
            return
        try:
            for push, staged in pushes.items():
                if staged is None:
                    self._give_up(f"step {step} is to be made of {push}, which is not here")
            with_rows = [staged for staged in pushes.values() if staged is not None and staged.rows]
            self._make(step, with_rows, decision.snapshot, epoch)
        finally:
            with self._lock:
                self._under_way.discard((epoch, step))
                if self._versions.step >= step:
                    for push in decision.pushes:
                        self._staged.pop(push[:3], None)
                self._changed.notify_all()

    def _give_up(self, why: str) -> NoReturn:
        """Close, and have all servers go back to a snapshot: the values here cannot be relied upon."""
        epoch = self.epoch
        self.close()
        if epoch is not None:
            self._lead.broken(epoch, f"{self.config.servers[self.config.server]}: {why}")
        raise RolledBack(why)

    def _make(self, step: int, pushes: Sequence[Staged], is_copied: bool, epoch: str | None) -> None:
        commons, tables = pushes[0].commons, [(push.worker, push.rows, push.tables) for push in pushes]
        if self._shares_commons:
            # What all servers' gradients share is known only when each has the mean of its own.
            pushes = [Staged(-1, sum(push.rows for push in pushes), self._mean(pushes), ())]
            partials = [] if self._partials is None else self._partials(pushes[0].gradients, wait=True)
            commons = self._lead.commons(epoch or "", step, [np.asarray(partial) for partial in partials])
        with self._versions.replacing() as values:
            if self.epoch != epoch:
                raise RolledBack(_GONE_BACK)
            try:
                if self._update is not None:
                    rows, gradients = [push.rows for push in pushes], [push.gradients for push in pushes]
                    values = self._update(values, rows, gradients, [*commons, np.int32(step - 1)])
                if self.config.tables:
                    self.tables.update(tables, step)
            except Exception as error:  # noqa: BLE001  the old values may be gone
                self._give_up(f"the update failed: {error}")
            self._versions.publish(step, values)  # `apply` wakes those who wait for it
            if is_copied and self._snapshot is not None:
                self._snapshot(step, [np.array(host_view(value)) for value in values])

    def combine(self, shares: Sequence[Array]) -> list[Array]:
        """Return the commons that the shares of all servers make together; on server 0."""
        if self._combine is None:
            raise StrategyError(f"model {self.config.name!r} has nothing to combine here")
        return [np.asarray(array) for array in self._combine(shares, wait=True)]

    def _mean(self, pushes: Sequence[Staged]) -> Sequence[Array]:
        """Return the mean of gradients, by rows, in the order of the pushes."""
        if len(pushes) == 1:
            return pushes[0].gradients
        shares = weights([push.rows for push in pushes])
        with jax.default_device(self._device):
            means = _weighted(shares, [list(push.gradients) for push in pushes])
        return [np.asarray(mean) for mean in means]

    def describe(self) -> list[dict[str, Any]]:
        """Describe its arrays, for the status."""
        task = self.config.servers[self.config.server]
        return [
            {
                "name": array.name,
                "shape": list(array.spec.shape),
                "dtype": array.spec.dtype,
                "bytes": array.spec.nbytes,
                "device": f"{task}/device:{self._device.platform.upper()}:{self._device.id}",
            }
            for array in self.config.arrays
        ]


_weighted = jax.jit(weighted)


def _owned(array: Array) -> Array:
    return array if array.flags.writeable else np.array(array)


def _check(arrays: Sequence[Array], expected: Sequence[ArrayConfig], what: str) -> None:
    got = [(array.shape, str(array.dtype)) for array in arrays]
    wanted = [(each.spec.shape, each.spec.dtype) for each in expected]
    if got != wanted:
        raise ProtocolError(
            f"{what} that do not fit: {len(got)} arrays {got[:4]!r:.200}; this server has {len(wanted)}: {wanted[:4]!r:.200}"
        )
