"""The core of a model behind its lock, as threads that bring pushes use it on server 0."""

import logging
import time
from collections.abc import Callable, Sequence

import numpy as np

from stratagem.parameters import protocol
from stratagem.parameters.authority import Decision
from stratagem.parameters.config import StoreConfig
from stratagem.parameters.locks import Changes
from stratagem.parameters.model_core import ModelCore
from stratagem.parameters.protocol import Reading
from stratagem.parameters.rules import BoundedStaleness
from stratagem.parameters.store import Combine, Lead
from stratagem.parameters.update_rules import Push
from stratagem.runtime.wire.arrays import Array

_log = logging.getLogger("stratagem")


class Decider(Lead):
    """Waits, under one lock, for what the core decides.

    Args:
        config: The model.
        start: Which start of server 0 this is.
        news: Called when there may be something to do for the thread that looks after the model; returns at once.

    Attributes:
        core: The core; `changed` guards it, and tells of every change in it.
        is_alone: Whether no other server has part in updates. Then nobody is woken when a push is decided: whoever
            makes the update does so afterwards, with `tell`.
    """

    def __init__(self, config: StoreConfig, start: str, news: Callable[[], None]) -> None:
        self.core = ModelCore(config, start)
        self.changed = Changes()
        self.changed.also = news
        self.is_alone = len(config.participants) == 1
        self._news = news
        self._is_bounded = isinstance(config.rule, BoundedStaleness)
        self._commons: dict[tuple[str, int], Sequence[Array]] = {}

    def decide(
        self, epoch: str, push: Push, end: float, is_here: bool, server: int = 0
    ) -> tuple[Decision | None, list[str]]:
        """Tell of a push that a server has, and wait for the decision about it until the end."""
        core, changed = self.core, self.changed
        with changed.lock:
            if not is_here:
                decision = core.decision(epoch, push)
            else:
                before = core.authority.decided
                decision = core.push_arrived(epoch, push, server)
                if core.authority.snapshots:
                    self._news()
                if decision is None:
                    decision = self._wait(epoch, push, end)
                elif not self.is_alone and core.authority.decided != before:
                    changed.notify_all()
            return decision, [] if decision is not None else core.names(core.authority.missing())

    def _wait(self, epoch: str, push: Push, end: float) -> Decision | None:
        while (left := end - time.monotonic()) > 0 and self.changed.wait(left):
            decision = self.core.decision(epoch, push)
            if decision is not None:
                return decision
        return None

    def update(self, epoch: str, step: int) -> Decision | None:
        """The decision that led to a step."""
        with self.changed:
            return self.core.update(epoch, step)

    def commons(
        self, epoch: str, step: int, partials: Sequence[Array], combine: Combine, server: int = 0
    ) -> Sequence[Array]:
        """Take a server's share, and wait for what all servers have in common; who brings the last share combines them."""
        with self.changed:
            shares = self.core.share_arrived(epoch, step, server, [np.array(partial) for partial in partials])
            if shares is not None:
                self._commons = {key: self._commons[key] for key in self._commons if key == (epoch, step - 1)}
                self._commons[epoch, step] = combine(shares)
                self.changed.notify_all()
            while (epoch, step) not in self._commons:
                self.changed.wait(protocol.PATIENCE)
                self.core.check(epoch)
            return self._commons[epoch, step]

    def broken(self, epoch: str, why: str) -> None:
        """An update failed on a server: all have to go back."""
        with self.changed:
            self.core.broken(epoch, why)
            self.changed.notify_all()
        self.log()

    def may_go_on(self, epoch: str, worker: int, end: float) -> list[int]:
        """Wait until a worker may go on; those whom it still has to wait for at the end."""
        if not self._is_bounded:
            return []
        with self.changed.lock:
            waits_for = self.core.authority.waits_for(worker)
            if waits_for and self.is_alone:
                self.changed.notify_all()  # the others need not wait until this worker is answered
            while waits_for and self.changed.wait(max(0.0, end - time.monotonic())):
                self.core.check(epoch)
                waits_for = self.core.authority.waits_for(worker)
            return waits_for

    def tell(self) -> None:
        """Wake those who wait for decisions."""
        with self.changed.lock:
            self.changed.wake()

    def add_metrics(self, push: Push, metrics: dict[str, Reading]) -> None:
        """Record the metrics of a push."""
        with self.changed.lock:
            self.core.notices.add_metrics(push, metrics)

    def means(self, decision: Decision) -> dict[str, Reading]:
        """The means of the metrics over all pushes of an update."""
        with self.changed.lock:
            return self.core.notices.means(decision)

    def log(self) -> None:
        """Log what the core has to say."""
        with self.changed.lock:
            lines, self.core.log_lines = self.core.log_lines, []
        for level, text in lines:
            _log.log(level, "%s", text)
