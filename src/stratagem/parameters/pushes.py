"""What a server does with a push: stages it, sees to it that its update is made, answers with the newest parameters."""

import threading
import time
from collections.abc import Callable
from functools import partial

from stratagem.errors import DeadlineExceeded, TaskLost
from stratagem.parameters import protocol
from stratagem.parameters.authority import APPLIED, COUNTED, Decision
from stratagem.parameters.leader import Leader
from stratagem.parameters.machines import Push
from stratagem.parameters.part import ModelPart
from stratagem.parameters.protocol import OK, PENDING, SEND, STATE
from stratagem.parameters.rules import Sync
from stratagem.parameters.store import Key, Store
from stratagem.runtime.wire import Fields, Reply, Request


class _Waiting:
    """A push whose handler waits, and which whoever makes its update may answer.

    Args:
        request: The call.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._lock = threading.Lock()
        self._is_claimed = False

    def answer(self, reply: Reply) -> None:
        """Answer it in its handler's place."""
        with self._lock:
            if not self._is_claimed:
                try:
                    self._request.respond(reply)
                except (TaskLost, DeadlineExceeded):
                    pass  # its handler finds the connection closed
                except Exception:  # noqa: BLE001  its handler tries, too, and tells the caller what is wrong
                    return
                self._is_claimed = True

    def claim(self) -> bool:
        """Let nobody answer it any more; whether nobody has."""
        with self._lock:
            is_first, self._is_claimed = not self._is_claimed, True
            return is_first


class Pushes:
    """The pushes of one model on one server.

    Args:
        part: What the server holds of the model.
        leader: What server 0 does for all; `None` on the others.
    """

    def __init__(self, part: ModelPart, leader: Leader | None) -> None:
        self._part = part
        self._leader = leader
        # Threads that wake one another, and then all want the interpreter, are slow: where one server does all, the
        # thread that makes an update answers everybody who waits for it.
        self._is_together = leader is not None and leader.is_alone and isinstance(part.config.rule, Sync)
        self._waiting: dict[Key, _Waiting] = {}

    def take(self, request: Request, store: Store, push: Push) -> Reply:
        """Take a push, see to it that its update is made, and answer with the newest parameters.

        Args:
            request: The call that brings it, or asks again what became of it.
            store: The values, from which those came that it was computed on.
            push: The push.

        Raises:
            RolledBack: The servers have gone back to an earlier step.
        """
        # Over a network each is sent all of the parameters, which is for threads to do at the same time.
        if not self._is_together or request.peer.process is None:
            return self._taken(request, store, push, None)
        waiting = self._waiting[push[:3]] = _Waiting(request)
        try:
            return self._taken(request, store, push, waiting)
        finally:
            waiting.claim()
            if self._waiting.get(push[:3]) is waiting:  # not asked again meanwhile, over another connection
                del self._waiting[push[:3]]

    def _taken(self, request: Request, store: Store, push: Push, waiting: _Waiting | None) -> Reply:
        fields, end, leader = request.fields, waits_until(request), self._leader
        epoch, is_again = fields["epoch"], fields["again"]
        if not is_again:
            store.stage(push, request.tensors)
            if leader is not None and fields["metrics"]:
                leader.bulletin.add_metrics(push, fields["metrics"])
        is_here = not is_again or store.has(push)
        decision, missing = self._part.lead.decide(epoch, push, end, is_here)
        if waiting is not None and not waiting.claim():
            return Reply()  # to nobody: another thread has answered
        if decision is None and not is_here:
            return Reply({STATE: SEND})
        if decision is None:
            store.own(push)
            return Reply({STATE: PENDING, "waiting": missing})
        store.settle(push, decision)
        told = {STATE: OK, "kind": decision.kind, "why": decision.why, "step": decision.step}
        if leader is not None:
            ahead_of = leader.may_go_on(epoch, push.worker, end)
            if ahead_of:
                return Reply({STATE: PENDING, "waiting": leader.names(ahead_of)})
            told["metrics"] = leader.bulletin.means(decision)
        if decision.kind == COUNTED:
            return Reply(told, after=self._tell)
        told["update"] = decision.step
        told["step"], leaves, release = store.read(decision.step)
        if self._waiting:
            for other in decision.pushes:
                others = self._waiting.get(other[:3])
                if others is not None and others is not waiting:
                    others.answer(Reply(_about(other, decision, told), leaves))
        return Reply(_about(push, decision, told), leaves, after=partial(self._tell, release))

    def _tell(self, release: Callable[[], None] | None = None) -> None:
        """The answer is sent: what it was read from may change, and others may hear."""
        if release is not None:
            release()
        if self._leader is not None and self._leader.is_alone:
            self._leader.tell()


def _about(push: Push, decision: Decision, told: Fields) -> Fields:
    """What is told about one of the pushes of an update."""
    return told if decision.kind != APPLIED else {**told, "staleness": decision.step - 1 - push.base}


def waits_until(request: Request) -> float:
    """Until when a caller may be kept waiting."""
    return time.monotonic() + min(protocol.PATIENCE, (request.timeout or 2.0) / 2)
