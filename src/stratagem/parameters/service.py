"""The calls by which a task serves parameters, for every model that workers bring; every server has them."""

import logging
import threading
import time
from typing import Any

import jax
import numpy as np

from stratagem.devices.cores import stay_with
from stratagem.errors import DeadlineExceeded, RolledBack, TaskReplaced
from stratagem.keep import ShardRecord
from stratagem.parameters import protocol
from stratagem.parameters.config import StoreConfig
from stratagem.parameters.follower import Follower
from stratagem.parameters.leader import Leader
from stratagem.parameters.machines import Push
from stratagem.parameters.part import ModelPart
from stratagem.parameters.protocol import OK, OVER, PENDING, REPLACED, STATE
from stratagem.parameters.pushes import Pushes, rolled_back, waits_until
from stratagem.parameters.store import Store
from stratagem.runtime.daemon_work import DAEMON_WORK
from stratagem.runtime.server import Server
from stratagem.runtime.wire import Caller, Handler, Reply, Request

_log = logging.getLogger("stratagem")
_TICK_SECONDS = 0.5


class _Thread(threading.local):
    """What each thread that answers calls knows of itself."""

    stays_with: int | None = None


class ParameterService:
    """Holds parts of models for workers, and updates them as pushes come.

    Args:
        server: The task's server, which answers the calls.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._parts: dict[str, ModelPart] = {}
        self._leaders: dict[str, Leader] = {}
        self._pushes: dict[str, Pushes] = {}
        self._confirmed: set[str] = set()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._news = threading.Event()
        self._ticker: threading.Thread | None = None
        self._thread = _Thread()
        for name, handler in self._handlers().items():
            server.register(name, _guarded(handler))
        server.describe_also("parameters", self._describe)
        server.when_finished(self._finished)
        server.when_closed(self.close)

    def _handlers(self) -> dict[str, Handler]:
        return {
            protocol.FOUND: self._found,
            protocol.PROGRAM: self._program,
            protocol.FILL: self._fill,
            protocol.OPEN: self._open,
            protocol.JOIN: self._join,
            protocol.PAUSE: self._pause,
            protocol.PUSH: self._push,
            protocol.PULL: self._pull,
            protocol.HOLD: self._hold,
            protocol.READ: self._read,
            protocol.RELEASE: self._release,
            protocol.STAGE: self._stage,
            protocol.ASSIGN: self._assign,
            protocol.KEEP: self._keep,
            protocol.KEPT: self._kept,
            protocol.ENDED: self._ended,
            protocol.AGREE: self._agree,
            protocol.MARK: self._mark,
            protocol.MARKED: self._marked,
            protocol.NOTE: self._note,
            protocol.NOTED: self._noted,
            protocol.GATHER: self._gather,
            protocol.SAME: self._same,
            protocol.ARRIVED: self._arrived,
            protocol.DECISION: self._decision,
            protocol.PARTIALS: self._partials,
            protocol.BROKEN: self._broken,
            protocol.BEGIN: self._begin,
            protocol.RESTORE: self._restore,
            protocol.TAKE: self._take,
            protocol.CUT: self._cut,
            protocol.FORGET: self._forget,
        }

    def close(self) -> None:
        """End all threads."""
        self._closing.set()
        self._news.set()
        for leader in self._leaders.values():
            leader.close()
        for part in self._parts.values():
            part.close()

    # How a model comes here.

    def _found(self, request: Request) -> Reply:
        """A worker tells what this server's part of a model is; the chief's word counts, others may only come first."""
        config = StoreConfig.from_fields(request.fields["config"])
        with self._lock:
            if request.fields["chief"]:
                self._confirm(config)
            known = self._parts.get(config.name)
            if known is None:
                # Not before: making a server must not start JAX, which a strategy may still have to set up.
                device = jax.local_devices()[0]
                known = self._parts[config.name] = ModelPart(config, self._server.programs, device)
                if config.server == 0:
                    leader = Leader(known, self._server.peers, self._server.incarnation)
                    known.lead = self._leaders[config.name] = leader
                    leader.changed.also = self._news.set
                    for number, task in enumerate(config.workers):
                        if self._server.has_finished(task):  # before this server was started again
                            leader.leave(number, "finished")
                    self._start_ticking()
                else:
                    known.lead = Follower(known, self._server.peers)
                self._pushes[config.name] = Pushes(known, self._leaders.get(config.name), self._news.set)
            elif known.config != config and not (known.has_values or config.name in self._confirmed):
                waiting = "another worker has brought another model, and the chief is to say which one it is"
                return Reply({"missing": [], "waiting": waiting})
            else:
                known.config.check_same(config, request.peer.name)
            missing = known.missing()
        start = self._server.incarnation
        return Reply({"missing": missing, "start": start, "has_values": known.has_values, "waiting": ""})

    def _confirm(self, config: StoreConfig) -> None:
        """The chief has told what the model is: forget one that another worker has brought, as long as it has no values."""
        self._confirmed.add(config.name)
        known = self._parts.get(config.name)
        if known is not None and known.config != config and not known.has_values:
            _log.warning("the chief's model %s takes the place of another worker's", config.name)
            self._parts.pop(config.name).close()
            self._pushes.pop(config.name)
            if (leader := self._leaders.pop(config.name, None)) is not None:
                leader.close()

    def _program(self, request: Request) -> Reply:
        part = self._part(request)
        part.ship(request.take(0).tobytes())
        with self._lock:
            return Reply({"missing": part.missing()})

    def _fill(self, request: Request) -> Reply:
        """The chief brings initial values; they are answered from when the leader says so."""
        self._part(request).filled.fill(0, request.tensors)
        return Reply()

    def _open(self, request: Request) -> Reply:
        self._leader(request).open(request.fields["starts"])
        return Reply()

    def _begin(self, request: Request) -> Reply:
        self._part(request).filled.begin(request.fields["epoch"])
        return Reply()

    def _restore(self, request: Request) -> Reply:
        fields = request.fields
        self._part(request).restore(fields["step"], ShardRecord.from_dict(fields["record"]))
        return Reply()

    def _cut(self, request: Request) -> Reply:
        part, step = self._part(request), request.fields["step"]
        if request.fields["now"]:
            part.cut_now(step)
            return Reply()
        return Reply({"record": part.written(step, request.timeout or 0.0).to_dict()})

    def _forget(self, request: Request) -> Reply:
        """Cuts that are not kept any more: their shards may be on a disk of this host alone."""
        kept = self._part(request).kept
        for step in request.fields["steps"]:
            kept.remove(step)
        return Reply()

    # Workers.

    def _join(self, request: Request) -> Reply:
        fields = request.fields
        worker = fields["worker"]
        leader = self._leader(request)
        task = leader.part.config.workers[worker]
        self._server.hear(task, fields["incarnation"])
        if self._server.has_finished(task):
            gone = leader.authority.member(worker).has_gone or "finished"
            return Reply({STATE: OVER, "why": f"{task} has {_PAST.get(gone, gone)} in this job"})
        return Reply(
            leader.join(
                worker,
                fields["incarnation"],
                fields["chief"],
                fields["starts"],
                fields["had_values"],
                fields["epoch"],
                fields["reached"],
            )
        )

    def _pause(self, request: Request) -> Reply:
        self._leader(request).pause(request.fields["worker"])
        return Reply()

    def _same(self, request: Request) -> Reply:
        fields = request.fields
        self._leader(request).bulletin.check_same(fields["worker"], fields["number"], fields["digest"])
        return Reply()

    def _gather(self, request: Request) -> Reply:
        leader, fields = self._leader(request), request.fields
        end = waits_until(request)
        with leader.changed:
            meeting = leader.gatherings.bring(
                fields["worker"], fields["key"], fields["what"], request.take(0), leader.expected
            )
            leader.changed.notify_all()
            while not meeting.is_complete and leader.changed.wait(max(0.0, end - time.monotonic())):
                pass
            if not meeting.is_complete:
                missing = sorted(leader.expected - meeting.parts.keys())
                return Reply({STATE: PENDING, "waiting": leader.names(missing)})
            return Reply({STATE: OK}, [meeting.parts[worker] for worker in sorted(meeting.parts)])

    # Training.

    def _push(self, request: Request) -> Reply:
        fields = request.fields
        part = self._part(request)
        store = _opened(part, fields["epoch"])
        push = Push(*fields["push"])
        self._server.hear(part.config.workers[push.worker], push.incarnation)
        self._stay_with(request.peer)
        return self._pushes[part.config.name].take(request, store, push)

    def _stay_with(self, worker: Caller) -> None:
        """Keep this thread to the cores of the worker that waits for it."""
        if worker.process != self._thread.stays_with and worker.process is not None:
            stay_with(worker.process)
            self._thread.stays_with = worker.process

    def _arrived(self, request: Request) -> Reply:
        """Another server has its part of a push."""
        fields = request.fields
        end = time.monotonic() + min(fields["seconds"], protocol.PATIENCE)
        push = Push(*fields["push"])
        decision, waiting = self._leader(request).decide(
            fields["epoch"], push, end, fields["is_here"], fields["server"]
        )
        if decision is None:
            return Reply({STATE: PENDING, "waiting": waiting})
        return Reply({STATE: OK, "decision": decision.to_fields()})

    def _decision(self, request: Request) -> Reply:
        """Another server has not heard what an update was made of."""
        decision = self._leader(request).made(request.fields["epoch"], request.fields["step"])
        return Reply({STATE: OK, "decision": None if decision is None else decision.to_fields()})

    def _partials(self, request: Request) -> Reply:
        fields = request.fields
        commons = self._leader(request).commons(
            fields["epoch"], fields["step"], request.tensors, fields["server"]
        )
        return Reply({STATE: OK}, commons)

    def _broken(self, request: Request) -> Reply:
        self._leader(request).broken(request.fields["epoch"], request.fields["why"])
        return Reply({STATE: OK})

    # Reading.

    def _pull(self, request: Request) -> Reply:
        """The newest parameters; none if the worker has them."""
        store = _opened(self._part(request), request.fields["epoch"])
        if store.version <= request.fields["than"]:
            return Reply({STATE: OK, "step": store.version})
        version, views, release = store.read(is_far=request.peer.is_far)
        return Reply({STATE: OK, "step": version}, views, after=release)

    def _hold(self, request: Request) -> Reply:
        return Reply({"step": self._leader(request).hold(request.fields["holder"])})

    def _release(self, request: Request) -> Reply:
        self._leader(request).release(request.fields["holder"])
        return Reply()

    def _read(self, request: Request) -> Reply:
        store = _opened(self._part(request), request.fields["epoch"])
        step = request.fields["step"]
        version, views, release = store.read(step, everything=True, is_far=request.peer.is_far)
        return Reply({STATE: OK, "step": version}, views, after=release)

    def _ended(self, request: Request) -> Reply:
        self._leader(request).end_fit(request.fields["worker"], request.fields["fit"])
        return Reply({STATE: OK})

    def _agree(self, request: Request) -> Reply:
        """A worker wants to look at the values that all look at."""
        leader, fields = self._leader(request), request.fields
        fit, epoch_of_fit = fields["label"]
        end = waits_until(request)
        awaited = leader.agree(fields["epoch"], (fit, epoch_of_fit), fields["waits"], end)
        if not awaited:
            return Reply({STATE: OK})
        pushed = sum(leader.authority.pushed[worker] for worker in awaited)
        return Reply({STATE: PENDING, "waiting": leader.names(awaited), "pushed": pushed})

    def _mark(self, request: Request) -> Reply:
        part, fields = self._part(request), request.fields
        _opened(part, fields["epoch"])
        fit, epoch_of_fit = fields["label"]
        part.mark((fit, epoch_of_fit), fields["step"])
        return Reply({STATE: OK})

    def _marked(self, request: Request) -> Reply:
        part = self._part(request)
        _opened(part, request.fields["epoch"])
        label, values = part.marked()
        return Reply({STATE: OK, "label": list(label)}, values)

    # What the chief sets, and keeps.

    def _stage(self, request: Request) -> Reply:
        """New values for some of what is held here; they take effect when the leader says so."""
        fields = request.fields
        store = _opened(self._part(request), fields["epoch"])
        store.prepare(fields["token"], dict(zip(fields["indices"], request.tensors, strict=True)))
        return Reply({STATE: OK})

    def _assign(self, request: Request) -> Reply:
        fields = request.fields
        leader = self._leader(request)
        leader.assign(fields["epoch"], fields["token"], fields["servers"], fields["step"])
        return Reply({STATE: OK, "epoch": leader.epoch, "step": leader.authority.step})

    def _take(self, request: Request) -> Reply:
        fields = request.fields
        self._part(request).take(fields["token"], fields["step"], fields["is_anew"])
        return Reply({STATE: OK})

    def _keep(self, request: Request) -> Reply:
        part, fields = self._part(request), request.fields
        _opened(part, fields["epoch"])
        return Reply({STATE: OK, "is_reached": part.keep(fields["root"], fields["step"])})

    def _kept(self, request: Request) -> Reply:
        part, fields = self._part(request), request.fields
        try:
            record = part.kept_shard(fields["root"], fields["step"], protocol.PATIENCE)
        except DeadlineExceeded:
            return Reply({STATE: PENDING})
        return Reply({STATE: OK, "record": record.to_dict()})

    def _note(self, request: Request) -> Reply:
        self._leader(request).bulletin.note(request.fields["key"], request.take(0).tobytes())
        return Reply({STATE: OK})

    def _noted(self, request: Request) -> Reply:
        leader = self._leader(request)
        found = leader.bulletin.noted(request.fields["key"], waits_until(request))
        told = {STATE: PENDING if found is None else OK, "step": leader.authority.step}
        return Reply(told, [] if found is None else [np.frombuffer(found, np.uint8)])

    # Finding.

    def _part(self, request: Request) -> ModelPart:
        name = request.fields["model"]
        part = self._parts.get(name)
        if part is None:
            raise RolledBack(f"there is no model {name!r} here")
        return part

    def _leader(self, request: Request) -> Leader:
        name = request.fields["model"]
        leader = self._leaders.get(name)
        if leader is None:
            raise RolledBack(f"{self._server.task} does not lead model {name!r}")
        return leader

    # Time, and the end.

    def _finished(self, task: str) -> None:
        for leader in list(self._leaders.values()):
            if task in leader.part.config.workers:
                leader.leave(leader.part.config.workers.index(task), "finished")

    def _start_ticking(self) -> None:
        if self._ticker is None:
            self._ticker = threading.Thread(target=self._tick, name="stratagem-parameters", daemon=True)
            self._ticker.start()

    def _tick(self) -> None:
        following = 0.0
        while not self._closing.is_set():
            self._news.wait(_TICK_SECONDS)
            self._news.clear()
            try:
                with DAEMON_WORK:
                    for pushes in list(self._pushes.values()):
                        pushes.look()
                if time.monotonic() >= following:
                    following = time.monotonic() + _TICK_SECONDS
                    for leader in list(self._leaders.values()):
                        self._see_who_is_silent(leader)
            except Exception:  # noqa: BLE001  nobody else would hear of it
                # Without this thread nobody would be given up, and some never answered.
                _log.exception("something went wrong while time passed; it is tried again")

    def _see_who_is_silent(self, leader: Leader) -> None:
        config = leader.part.config
        silent = self._server.silent_for(config.rejoin_timeout)
        workers = [number for number, task in enumerate(config.workers) if task in silent]
        for worker in leader.tick(time.monotonic(), workers):
            rest = "the job goes on without it" if leader.expected else "no worker is left"
            task = config.workers[worker]
            _log.warning("%s has been silent for %g s and is given up; %s", task, config.rejoin_timeout, rest)
            self._server.give_up(task)

    def _describe(self) -> Any:
        return {
            name: {
                "step": part.store.version if part.store is not None else 0,
                "variables": part.store.describe() if part.store is not None else [],
                **(self._leaders[name].describe() if name in self._leaders else {}),
            }
            for name, part in self._parts.items()
        }


_PAST = {"given up": "been given up"}


def _guarded(handler: Handler) -> Handler:
    """The same, with an answer where it is for the worker to do something: to come again, or to end."""

    def guarded(request: Request) -> Reply:
        try:
            return handler(request)
        except RolledBack as error:
            return rolled_back(error)
        except TaskReplaced as error:
            return Reply({STATE: REPLACED, "why": str(error)})

    return guarded


def _opened(part: ModelPart, epoch: str) -> Store:
    store = part.store
    if store is None or store.epoch is None or store.epoch != epoch:
        raise RolledBack("this server is not, or no longer, at what the worker knows of")
    return store
