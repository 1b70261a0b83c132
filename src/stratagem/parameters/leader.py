"""What server 0 does for all servers of a model: carries out what the authority decides, opens it, brings it back."""

import logging
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stratagem.errors import KeepError, RemoteError, RolledBack
from stratagem.parameters import protocol
from stratagem.parameters.agreements import Agreements, Label
from stratagem.parameters.authority import Authority, Decision
from stratagem.parameters.bulletin import Bulletin
from stratagem.parameters.fellows import Fellows
from stratagem.parameters.gatherings import Gatherings
from stratagem.parameters.locks import Changes
from stratagem.parameters.machines import Push
from stratagem.parameters.part import ModelPart
from stratagem.parameters.snapshots import LONG, Snapshots
from stratagem.runtime.peers import Peers
from stratagem.runtime.wire import Fields
from stratagem.runtime.wire.arrays import Array
from stratagem.runtime.wire.failures import first_line

_log = logging.getLogger("stratagem")
_HOLD_SECONDS = 30.0


@dataclass
class _Setback:
    """That the servers went back to a cut, since one was lost.

    Attributes:
        reached: The furthest step that anybody has told of since.
        step: The step of the cut.
    """

    reached: int
    step: int


class Leader:
    """The one authority over a model.

    Args:
        part: Server 0's own part.
        peers: The other servers.
        start: Which start of this server it is.

    Attributes:
        authority: The book; `changed` guards it, and tells of every change in it.
        bulletin: What workers leave here for one another.
        agreements: Which values all look at; guarded like the book.
        is_open: Whether the model is being trained.
        is_alone: Whether no other server has part in updates. Then nobody is woken when a push is decided: whoever
            makes the update does so afterwards, with `tell`.
    """

    def __init__(self, part: ModelPart, peers: Peers, start: str) -> None:
        config = part.config
        self.part = part
        self.authority = Authority(config.rule, len(config.workers), config.participants)
        self.gatherings = Gatherings()
        self.bulletin = Bulletin(config.workers)
        self.agreements = Agreements()
        self.changed = Changes()
        self.is_open = False
        self.epoch: str | None = None
        self._fellows = Fellows(config, peers)
        self._snapshots = Snapshots(part, self._fellows)
        self.is_alone = len(config.participants) == 1
        self._start = start
        self._opening = threading.Lock()
        self._starts: list[str] = []
        self._lost = ""
        self._setback: _Setback | None = None
        self._partials: dict[int, dict[int, Sequence[Array]]] = defaultdict(dict)
        self._commons: dict[int, Sequence[Array]] = {}
        self._holders: dict[str, float] = {}

    # Pushes.

    def _arrived(self, epoch: str, push: Push, server: int, end: float) -> Decision | None:
        """A server has its part of a push; what becomes of it, if that is known before the end."""
        decision_of = self.authority.decision
        with self.changed.lock:
            self._check(epoch)
            decision = decision_of(*push[:3])
            if decision is None:
                self.authority.arrived(push, server)
                decision = decision_of(*push[:3])
                if decision is not None and not self.is_alone:
                    self.changed.notify_all()
            while decision is None:
                left = end - time.monotonic()
                if left <= 0 or not self.changed.wait(left):
                    return None
                self._check(epoch)
                decision = decision_of(*push[:3])
            return decision

    def decide(
        self, epoch: str, push: Push, end: float, is_here: bool, server: int = 0
    ) -> tuple[Decision | None, list[str]]:
        """See `Lead`; the other servers' pushes are told of here too."""
        decision = self._arrived(epoch, push, server, end) if is_here else self._known(epoch, push)
        return decision, [] if decision is not None else self.missing()

    def _known(self, epoch: str, push: Push) -> Decision | None:
        with self.changed:
            self._check(epoch)
            return self.authority.decision(*push[:3])

    def made(self, epoch: str, step: int) -> Decision | None:
        """See `Lead`."""
        with self.changed:
            self._check(epoch)
            return self.authority.made(step)

    def missing(self) -> list[str]:
        """The workers that the next update waits for."""
        with self.changed:
            return self.names(self.authority.missing())

    def names(self, workers: Iterable[int]) -> list[str]:
        """The tasks of workers."""
        return [self.part.config.workers[worker] for worker in workers]

    def broken(self, epoch: str, why: str) -> None:
        """See `Lead`."""
        with self.changed:
            if epoch == self.epoch and self.is_open:
                _log.error("model %s cannot go on and has to go back: %s", self.part.config.name, why)
                self.is_open = False
                self.changed.notify_all()

    def may_go_on(self, epoch: str, worker: int, end: float) -> list[int]:
        """For whom a worker must wait: nobody, or those who have not come by the end."""
        with self.changed.lock:
            waits_for = self.authority.waits_for(worker)
            if waits_for and self.is_alone:
                self.changed.notify_all()  # the others need not wait until this worker is answered
            while waits_for and self.changed.wait(max(0.0, end - time.monotonic())):
                self._check(epoch)
                waits_for = self.authority.waits_for(worker)
            return waits_for

    def tell(self) -> None:
        """Wake those who wait for decisions."""
        with self.changed.lock:
            self.changed.wake()

    def commons(self, epoch: str, step: int, partials: Sequence[Array], server: int = 0) -> Sequence[Array]:
        """See `Lead`; the other servers' shares come here too."""
        with self.changed:
            self._check(epoch)
            told = self._partials[step]
            told[server] = [np.array(part) for part in partials]
            if len(told) == len(self.part.config.participants):
                ordered = [part for each in sorted(told) for part in told[each]]
                self._commons[step] = self.part.combined(ordered)
                for old in [old for old in self._commons if old < step - 1]:
                    del self._commons[old]
                del self._partials[step]
                self.changed.notify_all()
            while step not in self._commons:
                self.changed.wait(protocol.PATIENCE)
                self._check(epoch)
            return self._commons[step]

    def _check(self, epoch: str) -> None:
        if epoch != self.epoch or not self.is_open:
            raise RolledBack("the servers have gone back to an earlier step, or are about to")

    # Workers.

    def join(
        self,
        worker: int,
        incarnation: str,
        is_chief: bool,
        starts: list[str],
        had_values: bool,
        epoch: str,
        reached: int,
    ) -> Fields:
        """A worker wants to take part, having told every server of the model.

        Args:
            worker: Its number.
            incarnation: Which start of it.
            is_chief: Whether it may bring initial values.
            starts: Which start of each server it has told.
            had_values: Whether a server other than this one has values.
            epoch: The stretch of history that it has trained in; empty if in none.
            reached: The step that it had come to in it.

        Returns:
            What to do: train (and what was lost since it last did), bring values, or wait and come again; or that a server
            has lost its values, and there is no cut to go back to.
        """
        with self._opening:
            if not self.is_open or starts != self._starts:
                outdated = self._compare(starts)
                waiting = outdated or self._recover(starts, had_values, is_chief, reached)
                if waiting is not None:
                    return waiting
            # What an earlier start of this worker held, it cannot release any more.
            task = self.part.config.workers[worker]
            for holder in [each for each in list(self._holders) if each.startswith(f"{task} ")]:
                self.release(holder)
            with self.changed:
                self.authority.join(worker, incarnation)
                self.changed.notify_all()
                told = {protocol.STATE: protocol.OK, "epoch": self.epoch, "step": self.authority.step}
            setback = self._setback
            if setback is not None and epoch not in ("", self.epoch):
                self._tell_loss(setback, reached)
                told.update(reached=setback.reached, cut=setback.step)
            return told

    def _tell_loss(self, setback: _Setback, reached: int) -> None:
        """Log what a loss has cost, as far as it is known: a worker may have come further than those before it."""
        if reached > setback.reached:
            setback.reached = reached
            _log.warning(
                "model %s: a server was lost, all go back from step %d to the cut of step %d: %d update(s) are lost",
                self.part.config.name,
                reached,
                setback.step,
                reached - setback.step,
            )

    def pause(self, worker: int) -> None:
        """A worker's data have ended for now."""
        with self.changed:
            self.authority.pause(worker)
            self.changed.notify_all()

    def leave(self, worker: int, why: str) -> None:
        """A worker has finished, or is given up."""
        with self.changed:
            if not self.authority.member(worker).has_gone:
                self.authority.leave(worker, why)
                self.gatherings.look(self.expected)
                self.changed.notify_all()

    @property
    def expected(self) -> set[int]:
        """The workers that have come, or are waited for, and have not gone."""
        return {
            worker
            for worker in range(len(self.part.config.workers))
            if not self.authority.member(worker).has_gone
        }

    # Standing still.

    def hold(self, holder: str) -> int:
        """Let no update happen until `release`, or for half a minute; the step at which all stand still.

        Several may hold at once: updates happen again when the last has released.
        """
        with self.changed:
            self._holders[holder] = time.monotonic() + _HOLD_SECONDS
            return self.authority.hold()

    def release(self, holder: str) -> None:
        """Let updates happen, as far as this holder is concerned."""
        with self.changed:
            self._holders.pop(holder, None)
            if not self._holders:
                self.authority.release()
                self.changed.notify_all()

    # Looking at the same values.

    def end_fit(self, worker: int, fit: int) -> None:
        """A worker has come to the end of a fit."""
        with self.changed:
            self.agreements.end(worker, fit)
            self.changed.notify_all()

    def agree(self, epoch: str, label: Label, waits: bool, end: float) -> list[int]:
        """Have all servers keep the parameters that workers are to look at under a label, unless they do.

        Args:
            epoch: The stretch of history that the worker knows of.
            label: The label.
            waits: Whether to wait for those who have not come to the end of the fit.
            end: Until when.

        Returns:
            Who is waited for; nobody once the parameters are kept.

        Raises:
            RolledBack: The servers have gone back meanwhile, or have to.
        """
        with self.changed:
            self._check(epoch)
            while waits and (awaited := self.agreements.awaited(label, self.expected)):
                if not self.changed.wait(max(0.0, end - time.monotonic())):
                    return awaited
                self._check(epoch)
        with self._opening:
            with self.changed:
                self._check(epoch)
                if self.agreements.is_kept(label):
                    return []
            holder = f"values of {label}"
            step = self.hold(holder)
            try:
                self._fellows.everywhere(lambda server: self._mark(server, epoch, label, step))
            except RemoteError as error:
                raise RolledBack(
                    f"not all servers could keep their parameters: {first_line(error)}"
                ) from error
            finally:
                self.release(holder)
            with self.changed:
                self.agreements.kept = label
            return []

    def _mark(self, server: int, epoch: str, label: Label, step: int) -> None:
        if server == 0:
            self.part.mark(label, step)
            return
        told = {"epoch": epoch, "label": list(label), "step": step}
        answer = self._fellows.call(server, protocol.MARK, told, seconds=LONG)
        if answer[protocol.STATE] == protocol.ROLLED_BACK:
            raise RolledBack(str(answer["why"]))

    # Setting values.

    def assign(self, epoch: str, token: str, servers: Sequence[int], step: int | None) -> None:
        """Let values that were prepared on the servers take effect on all of them, between two updates.

        Args:
            epoch: The stretch of history that the chief knows of.
            token: By which the servers know them.
            servers: Those that have some.
            step: The global step from which training goes on with them: history begins anew there, and what was
                pushed before is void. `None`: it goes on as it is, and what is under way is applied to them.

        Raises:
            RolledBack: The servers have gone back meanwhile, or have to.
        """
        with self._opening:
            with self.changed:
                self._check(epoch)
            try:
                if step is None:
                    self._edit(token, servers)
                else:
                    self._replace(token, servers, step)
            except (RemoteError, KeepError) as error:
                # Some servers may have the new values and some the old.
                why = f"not all servers could take the values that the chief has set: {first_line(error)}"
                self.broken(epoch, why)
                raise RolledBack(why) from error

    def _edit(self, token: str, servers: Sequence[int]) -> None:
        holder = f"values {token}"
        step = self.hold(holder)
        try:
            # A cut that was decided before is of the old values everywhere: each server makes it before it takes these.
            self._fellows.everywhere(
                lambda server: self._take(server, token, step, False) if server in servers else None
            )
        finally:
            self.release(holder)

    def _replace(self, token: str, servers: Sequence[int], step: int) -> None:
        config, reached = self.part.config, self.authority.step
        self._close()
        self._snapshots.void()  # a cut of what was before must not be finished after this
        self._fellows.everywhere(
            lambda server: self._take(server, token if server in servers else "", step, True)
        )
        self._snapshots.forget_from(step)
        self._setback = None
        _log.info("model %s: the chief has set all values; from step %d to %d", config.name, reached, step)
        self._begin(step, self.authority.applied, self._starts, cuts=True)

    def _take(self, server: int, token: str, step: int, is_anew: bool) -> None:
        if server == 0:
            self.part.take(token, step, is_anew)
            return
        told = {"token": token, "step": step, "is_anew": is_anew}
        answer = self._fellows.call(server, protocol.TAKE, told, seconds=LONG)
        if answer[protocol.STATE] == protocol.ROLLED_BACK:
            raise RolledBack(str(answer["why"]))

    # Opening, and coming back.

    def open(self, starts: list[str]) -> None:
        """The chief has brought values to all servers: begin with them."""
        with self._opening:
            if not self.is_open:
                self._begin(0, {}, starts)

    def _compare(self, starts: list[str]) -> Fields | None:
        """What to tell a worker that knows of other starts of the servers than there are now."""
        try:
            found = [self._start, *self._fellows.incarnations()]
        except RemoteError as error:
            return {protocol.STATE: protocol.WAIT, "why": f"a server does not answer: {first_line(error)}"}
        if found == starts:
            return None
        return {protocol.STATE: protocol.WAIT, "why": "a server was started again just now"}

    def _recover(self, starts: list[str], had_values: bool, is_chief: bool, reached: int) -> Fields | None:
        """Bring all servers to one cut, and begin from there; what to wait for, if that is not to be."""
        was_open = self.epoch is not None
        if was_open:
            reached = max(reached, self.authority.step)
        self._close()
        try:
            cut = self._snapshots.restore()
        except RemoteError as error:
            return {protocol.STATE: protocol.WAIT, "why": f"a server does not answer: {first_line(error)}"}
        if cut is not None:
            step = cut.manifest.step
            applied = {int(worker): tuple(told) for worker, told in cut.manifest.meta["applied"].items()}
            self._setback = _Setback(-1, step)
            if was_open or reached > step:
                self._tell_loss(self._setback, max(reached, step))
            else:
                _log.warning(
                    "model %s goes on from the cut of step %d in %s",
                    self.part.config.name,
                    step,
                    self.part.kept.root,
                )
            self._begin(step, applied, starts)
            return None
        if was_open or had_values:
            lost = [
                task
                for task, now, before in zip(
                    self.part.config.servers, starts, self._starts or starts, strict=True
                )
                if now != before
            ]
            why = (
                f"{', '.join(lost) or self.part.config.servers[0]} was lost with its part of model "
                f"{self.part.config.name!r}, and there is no snapshot to go back to: give the strategy a snapshot_dir "
                "(stratagem run makes one by itself)"
            )
            self._lost = why
        if self._lost:
            return {protocol.STATE: protocol.LOST, "why": self._lost}
        if is_chief:
            return {protocol.STATE: protocol.WANTED}
        return {protocol.STATE: protocol.WAIT, "why": "the chief has not brought the initial values"}

    def _close(self) -> None:
        with self.changed:
            self.is_open = False
            self._partials.clear()
            self._commons.clear()
            self.changed.notify_all()

    def _begin(
        self, step: int, applied: dict[int, tuple[str, int]], starts: list[str], cuts: bool = False
    ) -> None:
        """Let all servers answer, with the values that they have.

        Args:
            step: The global step of the values.
            applied: See `Authority.rewind`.
            starts: Which starts of the servers they are.
            cuts: Whether to make a cut of the values in any case.
        """
        epoch = secrets.token_hex(8)

        def begin(server: int) -> None:
            if server == 0:
                self.part.filled.begin(epoch)
            else:
                self._fellows.call(server, protocol.BEGIN, {"epoch": epoch})

        self._fellows.everywhere(begin)
        with self.changed:
            self.authority.rewind(step, applied)
            self.agreements.forget()
            self.epoch, self._starts = epoch, starts
            self.authority.cut_wanted = False
            self._snapshots.rewound(step)
        if self._snapshots.are_made and (cuts or not self._snapshots.are_there):
            self._snapshots.make_now(step, applied)
        with self.changed:
            self.is_open = True
            self.changed.notify_all()

    # Cuts.

    def cut(self, step: int, values: list[Array]) -> None:
        """See `Lead`: write what server 0 copied, and finish the cut when all have written theirs."""
        with self.changed:
            applied = self.authority.applied_at_cut
        self.part.cut(step, values)
        self._snapshots.finish_later(step, applied)

    # Time.

    def tick(self, now: float, silent: Iterable[int]) -> list[int]:
        """Time has passed.

        Args:
            now: The time.
            silent: Workers that came, and have given no sign of life for as long as may be.

        Returns:
            The workers that are given up.
        """
        for holder in [holder for holder, end in list(self._holders.items()) if now > end]:
            _log.warning(
                "model %s: %s held it for too long and is not waited for", self.part.config.name, holder
            )
            self.release(holder)
        with self.changed:
            if self.is_open and self._snapshots.begin_if_due(now, self.authority.step):
                self.authority.cut_wanted = True
            given_up = [worker for worker in silent if not self.authority.member(worker).has_gone]
        for worker in given_up:
            self.leave(worker, "given up")
        return given_up

    def describe(self) -> dict[str, Any]:
        """How the training stands, for the status."""
        with self.changed:
            return {
                "global_step": self.authority.step,
                "rule": repr(self.part.config.rule),
                "is_open": self.is_open,
                "staleness": {str(steps): count for steps, count in sorted(self.authority.staleness.items())},
                "pushed": {
                    task: self.authority.pushed[worker]
                    for worker, task in enumerate(self.part.config.workers)
                },
                "dropped": {
                    self.part.config.workers[worker]: count
                    for worker, count in sorted(self.authority.dropped.items())
                },
                "active": self.names(sorted(self.authority.active)),
                "waits_for": self.names(self.authority.missing()),
                "last_cut": self._snapshots.newest if self._snapshots.are_made else None,
            }

    def close(self) -> None:
        """End its threads."""
        self._close()
        self._snapshots.close()
