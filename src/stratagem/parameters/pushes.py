"""The server's side of a push: stage it, see to it that its update is made, answer with the newest parameters.

Who answers a push, under Sync with one server, is the thread that makes its update:

    take ── decided ──> make the update, answer all of its pushes that WAIT, answer this one
      └─── not decided ──> WAITING (the handler returns LATER)
    WAITING ── the thread of another push makes the update ──> answered by that thread
            ── decided otherwise (a worker left), rolled back, or too long ──> answered by `look`, in the ticking thread
            ── asked again over another connection ──> that one WAITS in its place
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import cast

from stratagem.errors import RemoteError, RolledBack
from stratagem.parameters import protocol
from stratagem.parameters.authority import Decision
from stratagem.parameters.leader import Leader
from stratagem.parameters.protocol import OK, PENDING, ROLLED_BACK, SEND, STATE, Reading, StoreConfig
from stratagem.parameters.rules import APPLIED, COUNTED, Push
from stratagem.parameters.store import Key, Lead, Store
from stratagem.runtime.wire import LATER, Fields, Reply, Request
from stratagem.runtime.wire.arrays import Array

_METRICS = 16
"""The newest pushes of each worker whose metrics are kept."""


@dataclass(slots=True, eq=False)
class _PendingPush:
    """A push, or the question what became of one."""

    request: Request  # the call that brought it
    store: Store  # the values from which those came that it was computed on
    push: Push
    end: float  # until when its caller may be kept waiting
    is_far: bool  # whether its caller is answered over a network
    is_here: bool = True  # whether it is staged

    def answer(self, decision: Decision, fields: Fields, leaves: Sequence[Array]) -> Reply:
        """Return its worker's answer: what came of it, the parameters, and the rows that are wanted with them."""
        if decision.kind == APPLIED:
            fields = {**fields, "staleness": decision.step - 1 - self.push.base}
        wanted = self.request.fields.get("wanted", 0)
        if not wanted:
            return Reply(fields, leaves)
        ids = self.request.tensors[-wanted:]
        self.store.tables.check_ids(ids)
        return Reply(fields, [*leaves, *self.store.tables.read(ids, self.push.worker)])


class Pushes:
    """The pushes of one model on one server.

    Args:
        lead: Decides for all servers.
        leader: The same, on server 0; `None` on the others.
    """

    def __init__(self, config: StoreConfig, lead: Lead, leader: Leader | None = None) -> None:
        self._lead = lead
        self._leader = leader
        self._holds_workers = config.rule.holds_workers
        self._averages = config.rule.averages_pushes
        # Threads that wake one another, and then all want the interpreter, are slow: where one server does all, the
        # thread that makes an update answers everybody who waits for it.
        self._is_together = leader is not None and leader.is_alone and self._averages
        self._waiting: dict[Key, _PendingPush] = {}
        self._metrics = Metrics(len(config.workers))
        self._incarnations: dict[int, str] = {}
        self._lock = threading.Lock()

    def take(self, request: Request, store: Store, push: Push) -> Reply:
        """Take a push, see to it that its update is made, and answer with the newest parameters.

        Returns:
            The answer; or `LATER`, if the thread that makes the update is to answer.

        Raises:
            RolledBack: The servers have gone back to an earlier step.
        """
        fields, tensors = request.fields, request.tensors
        pending = _PendingPush(request, store, push, waits_until(request), request.peer.is_far)
        if fields["again"]:
            pending.is_here = store.has(push)
        else:
            last = len(tensors) - fields.get("wanted", 0)
            first = last - fields.get("tables", 0)
            store.stage(push, tensors[:first], tensors[first:last])
            if fields["metrics"]:  # sent to server 0 alone
                with self._lock:
                    self._metrics.add(push, fields["metrics"])
        # Over a network each is sent all of the parameters, which is for threads to do at the same time.
        if not self._is_together or pending.is_far:
            return self._reply(pending, pending.end)
        with self._lock:
            self._waiting[push[:3]] = pending
        try:
            reply = self._reply(pending, 0.0)
        except BaseException:
            self._forget(pending)
            raise
        if reply is not LATER:
            self._forget(pending)
        return reply

    def look(self) -> None:
        """Answer those who wait and were decided about by other ways than a push, or have waited for long."""
        with self._lock:
            waiting = list(self._waiting.items())
        for key, pending in waiting:
            if self._waiting.get(key) is not pending:  # answered with one before it
                continue
            reply: Reply | Exception
            try:
                reply = self._reply(pending, 0.0)
            except RolledBack as error:
                reply = rolled_back(error)
            except Exception as error:  # noqa: BLE001  the caller's to know, as if its own handler had raised it
                reply = error
            if reply is not LATER:
                self._answer(pending, reply)

    def _answer(self, pending: _PendingPush, reply: Reply | Exception) -> None:
        self._forget(pending)
        with suppress(RemoteError):  # the thread of its connection finds that out, too
            pending.request.respond(reply)

    def _forget(self, pending: _PendingPush) -> None:
        key = pending.push[:3]
        with self._lock:
            if self._waiting.get(key) is pending:  # not asked again meanwhile, over another connection
                del self._waiting[key]

    def _reply(self, pending: _PendingPush, end: float) -> Reply:
        """Return the answer, or `LATER` if nothing is decided by the end and the caller may be kept waiting."""
        store, push, leader = pending.store, pending.push, self._leader
        epoch = pending.request.fields["epoch"]
        decision, missing = self._lead.decide(epoch, push, end, pending.is_here)
        if decision is None:
            if not pending.is_here:
                return Reply({STATE: SEND})
            if end < pending.end and time.monotonic() < pending.end:
                return LATER
            store.own(push)
            return Reply({STATE: PENDING, "waiting": missing})
        store.settle(push, decision)
        if decision.kind == APPLIED and self._incarnations.get(push.worker) != push.incarnation:
            self._drop_left_over(pending)
        if leader is not None and pending.is_far:
            self._after_answer()  # now: to send it all to one who is far takes a while
        fields = {STATE: OK, "kind": decision.kind, "why": decision.why, "step": decision.step}
        if leader is not None:
            if self._holds_workers and (slower := leader.may_go_on(epoch, push.worker, end)):
                return Reply({STATE: PENDING, "waiting": leader.core.names(slower)})
            if self._averages:
                fields["metrics"] = self._metrics.means(decision)
        if decision.kind == COUNTED:
            return Reply(fields, after=self._after_answer)
        fields["update"] = decision.step
        if decision.kind != APPLIED and leader is not None:
            # Those whose pushes make that update may all have left it to others to answer.
            update = leader.update(epoch, decision.step)
            if update is not None:
                store.apply(update)
        fields["step"], leaves, release = store.read(decision.step, is_far=pending.is_far)
        if self._waiting:
            for other in decision.pushes:
                waiting = self._waiting.get(other[:3])
                if waiting is not None and waiting is not pending:
                    self._answer(waiting, waiting.answer(decision, fields, leaves))
        reply = pending.answer(decision, fields, leaves)
        reply.after = partial(self._after_answer, release)
        return reply

    def _drop_left_over(self, pending: _PendingPush) -> None:
        """Drop what earlier starts of a worker had not pushed to all servers: nobody else asks what became of it.

        Only after the first update of the new start: those that were decided on before it have been made here by then.
        """
        for push in pending.store.left_by_earlier_starts(pending.push):
            decision, _ = self._lead.decide(pending.request.fields["epoch"], push, 0.0, is_here=False)
            if decision is not None:
                pending.store.settle(push, decision)
        self._incarnations[pending.push.worker] = pending.push.incarnation

    def _after_answer(self, release: Callable[[], None] | None = None) -> None:
        """Let the values change that the answer was read from, and wake others: the answer is sent."""
        if release is not None:
            release()
        if self._leader is not None and self._leader.is_alone:
            self._leader.wake()
            if self._waiting:
                self._leader.news()


class Metrics:
    """The metrics of the newest pushes."""

    def __init__(self, workers: int) -> None:
        self._most = _METRICS * workers
        self._metrics: dict[tuple[int, str, int], dict[str, Reading]] = {}

    def add(self, push: Push, metrics: dict[str, Reading]) -> None:
        """Record the metrics of a push, whose worker is sent the means over all pushes of the update."""
        self._metrics[push[:3]] = metrics
        while len(self._metrics) > self._most:
            del self._metrics[next(iter(self._metrics))]

    def means(self, decision: Decision) -> dict[str, Reading]:
        """Return the means of the metrics over the rows of all pushes of an update; nothing where none were recorded."""
        if not self._metrics:
            return {}
        metrics = [(push.rows, self._metrics.get(push[:3], {})) for push in decision.pushes if push.rows]
        names = metrics[0][1] if metrics else {}
        return {name: _mean([(rows, each.get(name, 0.0)) for rows, each in metrics]) for name in names}


def _mean(readings: Sequence[tuple[int, Reading]]) -> Reading:
    """Return the mean of numbers, or of lists of numbers, by rows."""
    length = max((len(reading) for _, reading in readings if isinstance(reading, list)), default=None)
    if length is None:
        total = sum(rows for rows, _ in readings)
        return sum(rows * cast(float, reading) for rows, reading in readings) / total
    lists = [(rows, each if isinstance(each, list) else [each] * length) for rows, each in readings]
    return [_mean([(rows, each[place]) for rows, each in lists]) for place in range(length)]


def rolled_back(error: RolledBack) -> Reply:
    """Return the answer that makes a worker join again."""
    return Reply({STATE: ROLLED_BACK, "why": str(error)})


def waits_until(request: Request) -> float:
    """Return until when a caller may be kept waiting."""
    return time.monotonic() + min(protocol.PATIENCE, (request.timeout or 2.0) / 2)
