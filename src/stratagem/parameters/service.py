"""The calls by which a task serves parameters, for every model that workers bring; every server has them."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import jax
import numpy as np

from stratagem.devices.cores import stay_with
from stratagem.errors import RolledBack, TaskReplaced
from stratagem.parameters import protocol
from stratagem.parameters.exchanges import Label
from stratagem.parameters.leader import Follower, Leader
from stratagem.parameters.model_core import Joining, ModelCore
from stratagem.parameters.part import ModelPart
from stratagem.parameters.protocol import OK, OVER, PENDING, REPLACED, STATE, StoreConfig
from stratagem.parameters.pushes import Pushes, rolled_back, waits_until
from stratagem.parameters.rules import Push
from stratagem.parameters.store import Store
from stratagem.runtime.exits import DAEMON_WORK
from stratagem.runtime.server import Server
from stratagem.runtime.wire import Handler, Reply, Request
from stratagem.tables.table_files import NewRows

_log = logging.getLogger("stratagem")
_TICK_SECONDS = 0.5


@dataclass
class _Model:
    """A model on this server."""

    part: ModelPart  # what the server holds of it
    pushes: Pushes
    leader: Leader | None  # what this server does for all, if it is server 0
    is_confirmed: bool  # whether the chief has described the model

    def close(self) -> None:
        """End its threads."""
        self.part.close()
        if self.leader is not None:
            self.leader.close()


class ParameterService:
    """Holds one server's parts of models for workers, and updates them as pushes come."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._models: dict[str, _Model] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._news = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="stratagem-parameters", daemon=True)
        self._answering = threading.local()
        for name, handler in self._handlers().items():
            server.register(name, _guarded(handler))
        server.describe_also("parameters", self._describe)
        server.when_finished(self._finished)
        server.when_closed(self.close)

    def _handlers(self) -> dict[str, Handler]:
        return {
            protocol.MODEL: self._describe_model,
            protocol.PROGRAM: self._program,
            protocol.FILL: self._fill,
            protocol.OPEN: self._event(ModelCore.open, Leader.converse),
            protocol.JOIN: self._join,
            protocol.PAUSE: self._event(lambda core, worker: core.authority.pause(worker)),
            protocol.PUSH: self._push,
            protocol.PULL: self._pull,
            protocol.ROWS: self._rows,
            protocol.TABLE: self._table,
            protocol.HOLD: self._event(lambda core, holder: {"step": core.hold(holder, time.monotonic())}),
            protocol.RELEASE: self._event(ModelCore.release),
            protocol.STAGE: self._stage,
            protocol.ASSIGN: self._event(ModelCore.assign, Leader.converse),
            protocol.ENDED: self._event(lambda core, worker, fit: core.agreements.end(worker, fit)),
            protocol.AGREE: self._agree,
            protocol.MARKED: self._agreed_values,
            protocol.NOTE: self._note,
            protocol.NOTED: self._read_note,
            protocol.GATHER: self._gather,
            protocol.SAME: self._event(ModelCore.check_same),
            protocol.ARRIVED: self._arrived,
            protocol.DECISION: self._event(
                lambda core, epoch, step: {"decision": core.opened(epoch).decision_of_step(step)}
            ),
            protocol.PARTIALS: self._partials,
            protocol.BROKEN: self._event(ModelCore.broken),
            **dict.fromkeys(protocol.TO_ALL, self._obey),
        }

    def close(self) -> None:
        """End all threads."""
        self._closing.set()
        self._news.set()
        for model in self._models.values():
            model.close()

    def _event(
        self, event: Callable[..., Any], via: Callable[[Leader, Callable[[ModelCore], Any]], Any] = Leader.now
    ) -> Handler:
        """Return a handler that lets the core have an event, whose parameters are fields, and answers what it returns."""
        names = [*signature(event).parameters][1:]

        def handle(request: Request) -> Reply:
            values = [request.fields[name] for name in names]
            return Reply({STATE: OK, **(via(self._leader(request), lambda core: event(core, *values)) or {})})

        return handle

    # How a model comes here.

    def _describe_model(self, request: Request) -> Reply:
        """Take a worker's description of this server's part; the chief's counts, others' may only come first."""
        config = StoreConfig.from_fields(request.fields["config"], self._server.imports)
        is_chief = bool(request.fields["chief"])
        with self._lock:
            model = self._models.get(config.name)
            is_other = model is not None and model.part.config != config and not model.part.has_values
            if model is not None and is_other and is_chief:
                _log.warning("the chief's model %s takes the place of another worker's", config.name)
                model.close()
                model = None
            if model is None:
                model = self._models[config.name] = self._new_model(config, is_chief)
            elif is_other and not model.is_confirmed:
                waiting = "another worker has brought another model, and the chief is to say which one it is"
                return Reply({"missing": [], "waiting": waiting})
            else:
                model.is_confirmed = model.is_confirmed or is_chief
                model.part.config.check_same(config, request.peer.name)
            missing = model.part.missing()
        has_values = model.part.has_values
        start = self._server.incarnation
        return Reply({"missing": missing, "start": start, "has_values": has_values, "waiting": ""})

    def _new_model(self, config: StoreConfig, is_confirmed: bool) -> _Model:
        server = self._server
        # Not before: making a server must not start JAX, which a strategy may still have to set up.
        device = jax.local_devices()[0]
        if config.server != 0:
            follower = Follower(config, server.peers)
            part = ModelPart(config, server.programs, device, follower)
            return _Model(part, Pushes(config, follower), None, is_confirmed)
        leader = Leader(config, server.programs, device, server.peers, server.incarnation, self._news.set)
        for worker, task in enumerate(config.workers):
            if server.has_finished(task):  # before this server was started again
                leader.core.leave(worker, "finished")
        if self._ticker.ident is None:
            self._ticker.start()
        return _Model(leader.part, Pushes(config, leader, leader), leader, is_confirmed)

    def _program(self, request: Request) -> Reply:
        part = self._model(request).part
        part.ship(request.take(0).tobytes())
        with self._lock:
            return Reply({"missing": part.missing()})

    def _fill(self, request: Request) -> Reply:
        """Take initial values from the chief; readers get them when the leader says so."""
        self._model(request).part.filled.fill(0, request.tensors)
        return Reply()

    def _obey(self, request: Request) -> Reply:
        """Do what server 0, or the chief, asks of every server."""
        part = self._model(request).part
        return Reply({STATE: OK, **part.obey(request.name, request.fields, request.timeout or 0.0)})

    # Workers.

    def _join(self, request: Request) -> Reply:
        joining, leader = Joining(*request.fields["joining"]), self._leader(request)
        task = leader.part.config.workers[joining.worker]
        self._server.hear(task, joining.incarnation)
        if self._server.has_finished(task):
            gone = leader.now(lambda core: core.authority.member(joining.worker).has_gone) or "finished"
            return Reply({STATE: OVER, "why": f"{task} has {_PAST.get(gone, gone)} in this job"})
        return Reply(leader.converse(lambda core: core.join(joining)))

    def _gather(self, request: Request) -> Reply:
        leader, fields, array = self._leader(request), request.fields, request.take(0)
        end = waits_until(request)
        gather = leader.now(lambda core: core.gather(fields["worker"], fields["key"], fields["what"], array))
        if leader.until(lambda _: gather.is_complete, end):
            return Reply({STATE: OK}, [gather.parts[worker] for worker in sorted(gather.parts)])
        missing = leader.now(lambda core: core.names(sorted(core.expected - gather.parts.keys())))
        return Reply({STATE: PENDING, "waiting": missing})

    # Training.

    def _push(self, request: Request) -> Reply:
        fields = request.fields
        model = self._model(request)
        store = model.part.opened(fields["epoch"])
        push = Push(*fields["push"])
        self._server.hear(model.part.config.workers[push.worker], push.incarnation)
        process = request.peer.process
        if process is not None and process != getattr(self._answering, "process", None):
            stay_with(process)  # this thread, whose work the worker waits for
            self._answering.process = process
        return model.pushes.take(request, store, push)

    def _arrived(self, request: Request) -> Reply:
        """Record that another server has its part of a push, and wait for the decision."""
        fields = request.fields
        end = time.monotonic() + min(fields["seconds"], protocol.PATIENCE)
        decision, waiting = self._leader(request).decide(
            fields["epoch"], Push(*fields["push"]), end, fields["is_here"], fields["server"]
        )
        if decision is None:
            return Reply({STATE: PENDING, "waiting": waiting})
        return Reply({STATE: OK, "decision": decision})

    def _partials(self, request: Request) -> Reply:
        leader, fields = self._leader(request), request.fields
        commons = leader.commons(fields["epoch"], fields["step"], request.tensors, fields["server"])
        return Reply({STATE: OK}, commons)

    # Reading.

    def _pull(self, request: Request) -> Reply:
        """Send the newest parameters, or all values, that are at least of a step; nothing if the worker has them."""
        store, fields = self._opened(request), request.fields
        if store.version <= fields["than"]:
            return Reply({STATE: OK, "step": store.version})
        version, views, release = store.read(fields["at_least"], fields["everything"], request.peer.is_far)
        return Reply({STATE: OK, "step": version}, views, after=release)

    def _rows(self, request: Request) -> Reply:
        """Send the newest rows of some ids."""
        tables = self._opened(request).tables
        tables.check_ids(request.tensors)
        return Reply({STATE: OK}, tables.read(request.tensors, request.fields["reader"]))

    def _table(self, request: Request) -> Reply:
        """Send some rows of a table."""
        wanted = (request.fields[name] for name in ("stack", "start", "size"))
        following, count, arrays = self._opened(request).tables.page(*wanted)
        return Reply({STATE: OK, "next": following, "count": count}, arrays)

    def _agree(self, request: Request) -> Reply:
        """Have all servers keep the values that a worker evaluates, unless it has to wait for others."""
        leader, epoch = self._leader(request), request.fields["epoch"]
        label: Label = tuple(request.fields["label"])
        if request.fields["waits"]:
            leader.until(lambda core: not core.awaited(epoch, label), waits_until(request))
            awaited = leader.now(lambda core: core.awaited(epoch, label))
            if awaited:
                pushed = sum(leader.core.authority.pushed[worker] for worker in awaited)
                return Reply({STATE: PENDING, "waiting": leader.core.names(awaited), "pushed": pushed})
        leader.converse(lambda core: core.agree(epoch, label))
        return Reply({STATE: OK})

    def _agreed_values(self, request: Request) -> Reply:
        self._opened(request)
        label, values = self._model(request).part.agreed_values(tuple(request.fields["label"]))
        return Reply({STATE: OK, "label": list(label)}, values)

    # What the chief sets, and keeps.

    def _stage(self, request: Request) -> Reply:
        """Keep new values of some arrays; they take effect when the leader says so."""
        fields = request.fields
        count = len(fields["indices"])
        values = dict(zip(fields["indices"], request.tensors[:count], strict=True))
        rows = NewRows.from_fields(fields["rows"], request.tensors[count:])
        self._opened(request).prepare(fields["token"], values, rows)
        return Reply({STATE: OK})

    def _note(self, request: Request) -> Reply:
        key, note = request.fields["key"], request.take(0).tobytes()
        self._leader(request).now(lambda core: core.notes.update({key: note}))
        return Reply({STATE: OK})

    def _read_note(self, request: Request) -> Reply:
        leader, key = self._leader(request), request.fields["key"]
        is_there = leader.until(lambda core: key in core.notes, waits_until(request))
        core = leader.core
        fields = {STATE: OK if is_there else PENDING, "step": core.authority.step}
        return Reply(fields, [np.frombuffer(core.notes[key], np.uint8)] if is_there else [])

    # Finding.

    def _model(self, request: Request) -> _Model:
        name = request.fields["model"]
        model = self._models.get(name)
        if model is None:
            raise RolledBack(f"there is no model {name!r} here")
        return model

    def _opened(self, request: Request) -> Store:
        return self._model(request).part.opened(request.fields["epoch"])

    def _leader(self, request: Request) -> Leader:
        leader = self._model(request).leader
        if leader is None:
            raise RolledBack(f"{self._server.task} does not lead model {request.fields['model']!r}")
        return leader

    def _leaders(self) -> list[Leader]:
        return [model.leader for model in list(self._models.values()) if model.leader is not None]

    # Time, and the end.

    def _finished(self, task: str) -> None:
        for leader in self._leaders():
            workers = leader.part.config.workers
            if task in workers:
                leader.now(partial(ModelCore.leave, worker=workers.index(task), why="finished"))

    def _tick(self) -> None:
        following = 0.0
        while not self._closing.is_set():
            self._news.wait(_TICK_SECONDS)
            self._news.clear()
            try:
                with DAEMON_WORK:
                    for model in list(self._models.values()):
                        model.pushes.look()
                    for leader in self._leaders():
                        leader.write_snapshots()
                if time.monotonic() >= following:
                    following = time.monotonic() + _TICK_SECONDS
                    for leader in self._leaders():
                        self._see_who_is_silent(leader)
            except Exception:  # noqa: BLE001  nobody else would hear of it
                # Without this thread nobody would be given up, and some never answered.
                _log.exception("something went wrong while time passed; it is tried again")

    def _see_who_is_silent(self, leader: Leader) -> None:
        config = leader.part.config
        silent = self._server.silent_for(config.rejoin_timeout)
        workers = [number for number, task in enumerate(config.workers) if task in silent]
        for worker in leader.now(lambda core: core.tick(time.monotonic(), workers)):
            rest = "the job goes on without it" if leader.core.expected else "no worker is left"
            task = config.workers[worker]
            _log.warning("%s has been silent for %g s and is given up; %s", task, config.rejoin_timeout, rest)
            self._server.give_up(task)

    def _describe(self) -> Any:
        return {
            name: {
                "step": model.part.store.version if model.part.store is not None else 0,
                "variables": model.part.store.describe() if model.part.store is not None else [],
                "tables": model.part.store.tables.describe() if model.part.store is not None else [],
                **(model.leader.now(ModelCore.describe) if model.leader is not None else {}),
            }
            for name, model in self._models.items()
        }


_PAST = {"given up": "been given up"}


def _guarded(handler: Handler) -> Handler:
    """Return a handler that answers where the worker has to do something: to join again, or to end."""

    def guarded(request: Request) -> Reply:
        try:
            return handler(request)
        except RolledBack as error:
            return rolled_back(error)
        except TaskReplaced as error:
            return Reply({STATE: REPLACED, "why": str(error)})

    return guarded
