"""The server that every task of a cluster runs: it holds variables and runs programs, and no user code.

Upper layers and other packages add services, as entry points of the group `stratagem.services`. Each is called with the
server before it answers anybody, and registers handlers of its own. The server knows none of them.
"""

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Self

import jax

from stratagem import environment
from stratagem.cluster import Address, ClusterConfig, ClusterSpec, resolve_cluster
from stratagem.devices import list_devices
from stratagem.errors import ClusterError, StratagemError, TaskReplaced, WorkerLost
from stratagem.runtime.allowed_imports import AllowedImports
from stratagem.runtime.executor import Executor
from stratagem.runtime.exits import at_normal_exit
from stratagem.runtime.fan_out import fan_out
from stratagem.runtime.peers import (
    Peers,
    cluster_from_fields,
    cluster_to_fields,
    is_worker,
    leader_of,
    task_name,
    with_port,
)
from stratagem.runtime.programs import ProgramCache
from stratagem.runtime.remote_function import Supplier
from stratagem.runtime.roster import Roster
from stratagem.runtime.stderr import show_logs
from stratagem.runtime.wire import TLS, Credentials, Handler, Listener, Reply, Request
from stratagem.runtime.wire.addresses import socket_for

_log = logging.getLogger("stratagem")
SERVICES = "stratagem.services"
HEARTBEAT_SECONDS = 2.0
_FEW_HEARTBEATS = 3
FAREWELL_SECONDS = 1.0
"""How long to try to tell another task that this one has finished."""
_MOST_FAREWELLS = 32


@cache
def installed_services() -> tuple[Callable[[Any], object], ...]:
    """Return the installed services, in the order of their names."""
    return tuple(entry.load() for entry in sorted(entry_points(group=SERVICES), key=lambda entry: entry.name))


class Server:
    """One task of a cluster: others may place variables on it and run programs on it.

    Args:
        cluster: The cluster, as a `ClusterSpec` or a dictionary.
        job_name: The job of this task; may be left out if flags or TF_CONFIG name it, or the cluster has only one task.
        task_index: The index of this task in the job.
        secret: The secret that all tasks of the cluster share; by default STRATAGEM_SECRET or STRATAGEM_SECRET_FILE.
        tls: Certificates; by default STRATAGEM_TLS_CA, _CERT and _KEY.
        insecure: Listen on an address that others can reach although there is no secret.
        announce_devices: Start JAX now and tell callers its platform. A caller that needs the server to set up JAX passes
            `False` and calls `announce_devices` afterwards.
        services: What this server offers beside the installed services: each is called with it before it answers anybody.
        allowed_imports: Modules of yours that services may import here: a server runs no other code of a client's choice.

    Attributes:
        target: The target for a `Session`: `sg://host:port`.
        task: This task's name, such as `/job:worker/task:0`.
        peers: All tasks of the cluster, to be called by name.
        imports: The modules that services may import.

    Example:
        >>> with Server.create_local_server() as server, Session(server.target) as session:
        ...     session.run(lambda: b"Hello")
        b'Hello'
    """

    def __init__(
        self,
        cluster: ClusterSpec | Mapping[str, Sequence[str] | Mapping[int, str]],
        job_name: str | None = None,
        task_index: int | None = None,
        secret: str | bytes | None = None,
        tls: TLS | None = None,
        insecure: bool = False,
        *,
        announce_devices: bool = True,
        services: Sequence[Callable[["Server"], object]] = (),
        allowed_imports: Sequence[str] = (),
    ) -> None:
        show_logs()
        spec = ClusterSpec(cluster)
        job, index = _own_task(spec, job_name, task_index)
        credentials = Credentials.from_arguments(secret, tls)
        self.task = task_name(job, index)
        self.imports = AllowedImports(self.task, tuple(allowed_imports))
        self.incarnation = secrets.token_hex(8)
        self._done = threading.Event()
        self._has_finished = threading.Event()
        self._stopping = threading.Event()
        self._others_are_asked = threading.Event()
        self._descriptions: dict[str, Callable[[], object]] = {}
        self._when_finished: list[Callable[[str], None]] = []
        self._when_leader_restarts: list[Callable[[], None]] = []
        self._when_closed: list[Callable[[], None]] = []
        address = Address.parse(spec.task_address(job, index))
        others = [
            Address.parse(task.address).host
            for task in spec.tasks()
            if (task.job, task.index) != (job, index)
        ]
        self._listener = Listener(socket_for(address, others), credentials=credentials, insecure=insecure)
        self.cluster = with_port(spec, job, index, self._listener.address.port)
        self.peers = Peers(self.cluster, credentials, self.task, environment.run_id())
        self._leader = leader_of(self.peers.tasks)
        self._roster = Roster(frozenset(name for name in self.peers.tasks if is_worker(name)))
        self._executor = Executor(self.task, self.peers)
        self._listener.tell(
            task=self.task,
            incarnation=self.incarnation,
            run=environment.run_id(),
            cluster=cluster_to_fields(self.cluster),
        )
        for name, handler in {**self._executor.handlers(), **self._handlers()}.items():
            self._listener.register(name, handler)
        self.target = f"sg://{Address(address.host, self._listener.address.port)}"
        if announce_devices:
            self.announce_devices()
        for service in (*installed_services(), *services):
            service(self)
        self._listener.start()
        self._heartbeat = threading.Thread(target=self._beat, name="stratagem-heartbeat", daemon=True)
        self._heartbeat.start()
        self._cancel_exit = at_normal_exit(self.finish)
        _log.info("%s serves at %s", self.task, self.target)

    @classmethod
    def create_local_server(cls) -> "Server":
        """Return a server of a cluster of its own, on a free port of this machine."""
        return cls({"local": ["127.0.0.1:0"]}, "local", 0)

    def announce_devices(self) -> None:
        """Tell callers from now on for which platform to export programs. Starts JAX's backends."""
        self._listener.tell(platform=jax.default_backend())

    def register(self, name: str, handler: Handler) -> None:
        """Answer calls of that name with a function: how upper layers add calls."""
        self._listener.register(name, handler)

    def supply(self, kind: str, supplier: Supplier) -> None:
        """Supply programs that run here with inputs of that kind by a function: how upper layers add kinds of inputs."""
        self._executor.suppliers[kind] = supplier

    @property
    def programs(self) -> ProgramCache:
        """The programs that were shipped here, for upper layers that run some of their own."""
        return self._executor.programs

    def describe_also(self, key: str, describe: Callable[[], object]) -> None:
        """Add to this task's status, in plain values."""
        self._descriptions[key] = describe

    def when_finished(self, call: Callable[[str], None]) -> None:
        """Call a function with the name of every worker that finishes, or is given up, from now on."""
        self._when_finished.append(call)

    def when_leader_restarts(self, call: Callable[[], None]) -> None:
        """Call a function, in a thread of its own, whenever the task that hears all heartbeats was restarted."""
        self._when_leader_restarts.append(call)

    def when_closed(self, call: Callable[[], None]) -> None:
        """Call a function when this server stops."""
        self._when_closed.append(call)

    # Which tasks are alive.

    def has_finished(self, task: str) -> bool:
        """Return whether a worker is known to have finished, or to be given up."""
        return self._roster.has_ended(task)

    def hear(self, task: str, incarnation: str) -> None:
        """Take any call of a task as a sign of life.

        Raises:
            TaskReplaced: A newer start has replaced this one. Only the leader judges that, since it hears of all tasks.
        """
        is_new = self._roster.hear(task, incarnation, time.monotonic())
        if is_new:
            _log.warning("%s was restarted", task)
        elif is_new is None and self.task == self._leader:
            raise TaskReplaced(
                f"{task} was started again while this start of it was still running, and the newer one has taken its place: "
                "this one ends. What it has pushed counts, once. See to it that a task is started once at a time"
            )

    def silent_for(self, seconds: float) -> set[str]:
        """Return the unfinished workers that gave no sign of life for this long, and for at least a few heartbeats."""
        return self._roster.silent(time.monotonic(), max(seconds, _FEW_HEARTBEATS * HEARTBEAT_SECONDS))

    def give_up(self, task: str) -> None:
        """Wait no longer for a worker, which is lost; the other servers are told before this one may end."""
        others = [name for name in self.peers.tasks if not is_worker(name) and name != self.task]
        self._tell(others, "given_up", f"that {task} is given up", task)
        self._record_ends([], [task])

    @property
    def is_done(self) -> bool:
        """True if the job is done: every worker has finished, or was given up."""
        return self._roster.is_done

    @property
    def has_workers(self) -> bool:
        """True if a worker is connected to this task."""
        return any(is_worker(name) for name in self._listener.callers())

    # Requests to end.

    @property
    def others_are_asked_to_end(self) -> bool:
        """True if another task has said, with `tell_asked_to_end`, that it was asked to end."""
        return self._others_are_asked.is_set()

    def tell_asked_to_end(self, tasks: Sequence[str]) -> None:
        """Tell other tasks that this one was asked to end: they may have something to save before it is gone."""
        self._tell(tasks, "asked_to_end", "that it was asked to end", self.task)

    # Life.

    def join(self, timeout: float | None = None) -> bool:
        """Serve until the job is done (every worker has finished) or `stop` is called.

        Args:
            timeout: Seconds; for ever by default. Ctrl-C ends the wait.

        Returns:
            True if the job is done or the server was stopped, False if the timeout came first.

        Raises:
            WorkerLost: Every worker was lost and given up, and none has finished.
        """
        is_over = self._done.wait(timeout)
        if self._roster.has_failed:
            raise WorkerLost(
                f"the job has failed: {', '.join(self._roster.given_up)} did not come back, and no worker has finished. "
                "Their own output says why; start the job again"
            )
        return is_over

    def finish(self) -> None:
        """Tell all tasks that this worker has nothing more to do of its own; it may go on serving, with `join`.

        `stop` says so too, and so does a process that ends normally. A task that is not up now learns it from the others'
        heartbeats.
        """
        if not is_worker(self.task) or self._has_finished.is_set():
            return
        self._has_finished.set()
        self._tell(self.peers.tasks, "finished", "that it has finished", self.task)

    def stop(self) -> None:
        """Finish: tell the others, close every connection, end every thread. May be called twice."""
        self.finish()
        self._close()

    def _close(self) -> None:
        self._cancel_exit()
        self._stopping.set()
        self._done.set()
        for call in self._when_closed:
            call()
        self.peers.close()
        self._listener.stop()
        self._executor.close()
        self._heartbeat.join(FAREWELL_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.stop()
        else:
            self._close()  # a task that failed has not finished

    # Calls from other tasks.

    def _handlers(self) -> dict[str, Handler]:
        return {
            "ping": lambda request: Reply(),
            "heartbeat": self._answer_heartbeat,
            "finished": self._answer_finished,
            "given_up": self._answer_given_up,
            "asked_to_end": self._answer_asked_to_end,
            "status": self._answer_status,
        }

    def _answer_heartbeat(self, request: Request) -> Reply:
        replaced = ""
        try:
            self.hear(str(request.fields["task"]), str(request.fields["incarnation"]))
        except TaskReplaced as error:
            replaced = str(error)
        self._record_ends(request.fields["finished"], request.fields["given_up"])
        return Reply({"replaced": replaced, **self._ends()})

    def _answer_finished(self, request: Request) -> Reply:
        task = request.fields["task"]
        incarnation = request.fields.get("incarnation", "")  # a single client says it for its workers
        if not self._roster.is_replaced(task, incarnation):  # otherwise the newer start goes on
            self._record_ends([task])
        return Reply()

    def _answer_given_up(self, request: Request) -> Reply:
        self._record_ends([], [request.fields["task"]])
        return Reply()

    def _answer_asked_to_end(self, request: Request) -> Reply:
        _log.info("%s: %s was asked to end", self.task, request.fields["task"])
        self._others_are_asked.set()
        return Reply()

    def _answer_status(self, request: Request) -> Reply:
        counts = self._listener.status()
        return Reply(
            {
                "task": self.task,
                "incarnation": self.incarnation,
                "process": os.getpid(),
                "host": socket.gethostname(),
                "platform": jax.default_backend(),
                "seconds": counts.seconds,
                "calls": counts.calls,
                "failures": counts.failures,
                "bytes_in": counts.bytes_in,
                "bytes_out": counts.bytes_out,
                "connections": counts.connections,
                "last_error": counts.last_error,
                "devices": [device.name for device in list_devices()],
                "roster": self._roster.describe(time.monotonic()),
                **self._executor.describe(),
                **{key: describe() for key, describe in self._descriptions.items()},
            }
        )

    def _ends(self) -> dict[str, list[str]]:
        return {"finished": self._roster.finished, "given_up": self._roster.given_up}

    def _record_ends(self, finished: Sequence[object], given_up: Sequence[object] = ()) -> None:
        """Record workers that have finished or were given up; when all have, the job is done."""
        now = time.monotonic()
        ended = [task for task in map(str, finished) if self._roster.finish(task, now)]
        ended += [task for task in map(str, given_up) if self._roster.give_up(task, now)]
        for task in ended:
            for call in self._when_finished:
                call(task)
        if self._roster.is_done and not self._done.is_set():
            how = "the job has failed" if self._roster.has_failed else "the job is done"
            _log.info("%s: no worker is left, %s", self.task, how)
            self._done.set()

    # Calls to other tasks.

    def _beat(self) -> None:
        """Send heartbeats to the leader until this server stops, or a newer start of this task has replaced it."""
        leader = self._leader
        known: object = None
        has_warned = False
        while not self._stopping.is_set():
            self._roster.hear(self.task, self.incarnation, time.monotonic())
            if leader != self.task:
                try:
                    fields = {"task": self.task, "incarnation": self.incarnation, **self._ends()}
                    answer = self.peers[leader].call(
                        "heartbeat", fields, timeout=HEARTBEAT_SECONDS, wait=False
                    )
                    self._record_ends(answer.fields["finished"], answer.fields["given_up"])
                    if answer.fields["replaced"]:
                        _log.error("%s", answer.fields["replaced"])
                        return
                    known, before = self.peers[leader].info.get("incarnation"), known
                    if before is None:
                        self._compare_lists(leader)
                    if before not in (None, known):
                        for call in self._when_leader_restarts:
                            threading.Thread(target=call, name="stratagem-restart", daemon=True).start()
                except ClusterError as error:  # it will not mend by itself
                    _log.log(
                        logging.DEBUG if has_warned else logging.WARNING,
                        "no heartbeat to %s: %s",
                        leader,
                        error,
                    )
                    has_warned = True
                except StratagemError as error:
                    _log.debug("no heartbeat to %s: %s", leader, error)
            self._stopping.wait(HEARTBEAT_SECONDS)

    def _compare_lists(self, leader: str) -> None:
        """Warn if the leader lists this task at another port: it may serve another job, of the same names."""
        theirs = cluster_from_fields(self.peers[leader].info["cluster"])
        listed = {task_name(task.job, task.index): task.address for task in theirs.tasks()}.get(self.task)
        own = self.peers.address(self.task)
        # Not an error, since it proves nothing: a port may be reached through a tunnel, and a host may have several names.
        if listed and listed != own and Address.parse(listed).host == Address.parse(own).host:
            _log.warning(
                "%s at %s lists %s at %s, and this one is at %s: it may be of another job. Give every task of a job the same "
                "list of addresses",
                leader,
                self.peers.address(leader),
                self.task,
                listed,
                own,
            )

    def _tell(self, tasks: Sequence[str], call: str, message: str, subject: str) -> None:
        """Tell tasks something about one task, the subject."""

        def tell(name: str) -> None:
            try:
                fields = {"task": subject, "incarnation": self.incarnation}
                self.peers[name].call(call, fields, timeout=FAREWELL_SECONDS, wait=False)
            except StratagemError as error:
                _log.info("%s could not tell %s %s: %s", self.task, name, message, error)

        fan_out(tell, tasks, most=_MOST_FAREWELLS)  # all at once: some may be beyond a cut link


def _own_task(cluster: ClusterSpec, job_name: str | None, task_index: int | None) -> tuple[str, int]:
    """Return the task that this process is: by the arguments, by its environment, or because there is only one."""
    if job_name is None:
        config: ClusterConfig | None = resolve_cluster()
        if config is not None and config.cluster == cluster:
            return config.job_name, config.task_index
        if len(cluster.tasks()) != 1:
            raise ClusterError(
                f"which task of {cluster!r} is this? Give job_name and task_index, or set TF_CONFIG for this cluster"
            )
        only = cluster.tasks()[0]
        return only.job, only.index
    index = 0 if task_index is None else task_index
    cluster.task_address(job_name, index)
    return job_name, index
