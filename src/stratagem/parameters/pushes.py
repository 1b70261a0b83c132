"""What a server does with a push: stages it, sees to it that its update is made, answers with the newest parameters."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from stratagem.errors import RemoteError, RolledBack
from stratagem.parameters import protocol
from stratagem.parameters.authority import APPLIED, COUNTED, Decision
from stratagem.parameters.leader import Leader
from stratagem.parameters.machines import Push
from stratagem.parameters.part import ModelPart
from stratagem.parameters.protocol import OK, PENDING, ROLLED_BACK, SEND, STATE
from stratagem.parameters.rules import Sync
from stratagem.parameters.store import Key, Store
from stratagem.runtime.wire import LATER, Fields, Reply, Request


@dataclass(slots=True, eq=False)
class _Asked:
    """A push, or the question what became of one.

    Attributes:
        request: The call that brought it.
        store: The values, from which those came that it was computed on.
        push: The push.
        end: Until when its caller may be kept waiting.
        is_here: Whether it is staged.
    """

    request: Request
    store: Store
    push: Push
    end: float
    is_here: bool = True


class Pushes:
    """The pushes of one model on one server.

    Args:
        part: What the server holds of the model.
        leader: What server 0 does for all; `None` on the others.
        news: Called when `look` may find something to do.
    """

    def __init__(self, part: ModelPart, leader: Leader | None, news: Callable[[], None]) -> None:
        self._part = part
        self._leader = leader
        self._news = news
        # Threads that wake one another, and then all want the interpreter, are slow: where one server does all, the
        # thread that makes an update answers everybody who waits for it.
        self._is_together = leader is not None and leader.is_alone and isinstance(part.config.rule, Sync)
        self._waiting: dict[Key, _Asked] = {}
        self._incarnations: dict[int, str] = {}
        self._lock = threading.Lock()

    def take(self, request: Request, store: Store, push: Push) -> Reply:
        """Take a push, see to it that its update is made, and answer with the newest parameters.

        Args:
            request: The call that brings it, or asks again what became of it.
            store: The values, from which those came that it was computed on.
            push: The push.

        Returns:
            The answer; or `LATER`, if whoever makes the update is to answer.

        Raises:
            RolledBack: The servers have gone back to an earlier step.
        """
        asked = _Asked(request, store, push, waits_until(request))
        if request.fields["again"]:
            asked.is_here = store.has(push)
        else:
            store.stage(push, request.tensors)
            if self._leader is not None and request.fields["metrics"]:
                self._leader.bulletin.add_metrics(push, request.fields["metrics"])
        # Over a network each is sent all of the parameters, which is for threads to do at the same time.
        if not self._is_together or request.peer.is_far:
            return self._reply(asked, asked.end)
        with self._lock:
            self._waiting[push[:3]] = asked
        try:
            reply = self._reply(asked, 0.0)
        except BaseException:
            self._forget(asked)
            raise
        if reply is not LATER:
            self._forget(asked)
        return reply

    def look(self) -> None:
        """Answer those who wait and were decided about by other ways than a push, or have waited for long."""
        with self._lock:
            waiting = list(self._waiting.items())
        for key, asked in waiting:
            if self._waiting.get(key) is not asked:  # answered with one before it
                continue
            reply: Reply | Exception
            try:
                reply = self._reply(asked, 0.0)
            except RolledBack as error:
                reply = rolled_back(error)
            except Exception as error:  # noqa: BLE001  the caller's to know, as if its own handler had raised it
                reply = error
            if reply is not LATER:
                self._answer(asked, reply)

    def _answer(self, asked: _Asked, reply: Reply | Exception) -> None:
        self._forget(asked)
        with suppress(RemoteError):  # the thread of its connection finds that out, too
            asked.request.respond(reply)

    def _forget(self, asked: _Asked) -> None:
        key = asked.push[:3]
        with self._lock:
            if self._waiting.get(key) is asked:  # not asked again meanwhile, over another connection
                del self._waiting[key]

    def _reply(self, asked: _Asked, end: float) -> Reply:
        """What to answer, or `LATER` if nothing is known by then and the caller may be kept waiting."""
        store, push, leader = asked.store, asked.push, self._leader
        epoch = asked.request.fields["epoch"]
        decision, missing = self._part.lead.decide(epoch, push, end, asked.is_here)
        if decision is None:
            if not asked.is_here:
                return Reply({STATE: SEND})
            if end < asked.end and time.monotonic() < asked.end:
                return LATER
            store.own(push)
            return Reply({STATE: PENDING, "waiting": missing})
        store.settle(push, decision)
        if decision.kind == APPLIED and self._incarnations.get(push.worker) != push.incarnation:
            self._drop_left_over(asked)
        if leader is not None and asked.request.peer.is_far:
            self._tell()  # now: to send it all to one who is far takes a while
        told = {STATE: OK, "kind": decision.kind, "why": decision.why, "step": decision.step}
        if leader is not None:
            ahead_of = leader.may_go_on(epoch, push.worker, end)
            if ahead_of:
                return Reply({STATE: PENDING, "waiting": leader.names(ahead_of)})
            told["metrics"] = leader.bulletin.means(decision)
        if decision.kind == COUNTED:
            return Reply(told, after=self._tell)
        told["update"] = decision.step
        if decision.kind != APPLIED and leader is not None:
            # Those whose pushes make that update may all have left it to others to answer.
            made = leader.made(epoch, decision.step)
            if made is not None:
                store.apply(made)
        told["step"], leaves, release = store.read(decision.step, is_far=asked.request.peer.is_far)
        if self._waiting:
            for other in decision.pushes:
                waiting = self._waiting.get(other[:3])
                if waiting is not None and waiting is not asked:
                    self._answer(waiting, Reply(_about(other, decision, told), leaves))
        return Reply(_about(push, decision, told), leaves, after=partial(self._tell, release))

    def _drop_left_over(self, asked: _Asked) -> None:
        """Drop what earlier starts of a worker had not pushed to all servers: nobody else asks what became of it.

        Only after the first update of the new start: those that were decided on before it have been made here by then.
        """
        for push in asked.store.left_by_earlier_starts(asked.push):
            decision, _ = self._part.lead.decide(asked.request.fields["epoch"], push, 0.0, is_here=False)
            if decision is not None:
                asked.store.settle(push, decision)
        self._incarnations[asked.push.worker] = asked.push.incarnation

    def _tell(self, release: Callable[[], None] | None = None) -> None:
        """The answer is sent: what it was read from may change, and others may hear."""
        if release is not None:
            release()
        if self._leader is not None and self._leader.is_alone:
            self._leader.tell()
            if self._waiting:
                self._news()


def _about(push: Push, decision: Decision, told: Fields) -> Fields:
    """What is told about one of the pushes of an update."""
    return told if decision.kind != APPLIED else {**told, "staleness": decision.step - 1 - push.base}


def rolled_back(error: RolledBack) -> Reply:
    """The answer that makes a worker come again."""
    return Reply({STATE: ROLLED_BACK, "why": str(error)})


def waits_until(request: Request) -> float:
    """Until when a caller may be kept waiting."""
    return time.monotonic() + min(protocol.PATIENCE, (request.timeout or 2.0) / 2)
