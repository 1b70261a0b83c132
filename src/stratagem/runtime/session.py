"""The client's view of a cluster: place variables on its tasks, ship functions to them, get results back."""

import contextlib
import itertools
import secrets
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

from stratagem.cluster import ClusterSpec, resolve_cluster
from stratagem.devices import DeviceSpec, current_device, log_placement
from stratagem.devices.spec import as_spec
from stratagem.errors import ClusterError, StratagemError, TaskUnreachable, VariableMismatch
from stratagem.runtime.peers import Peers, TaskDevice
from stratagem.runtime.remote_function import RemoteFunction, TracedPrograms
from stratagem.runtime.remote_variable import RemoteVariable, to_array
from stratagem.runtime.wire import TLS, Credentials, Fields, Peer
from stratagem.runtime.wire.peer import DEFAULT_TIMEOUT

FAREWELL_SECONDS = 1.0
"""How long a session that is closed may take to clean up on each task."""


@dataclass(frozen=True)
class RemoteDevice:
    """A device of some task.

    Attributes:
        name: Its full name, such as `/job:ps/replica:0/task:0/device:CPU:0`.
        description: What it is.
    """

    name: str
    description: str


class Session:
    """A connection to a cluster through any one of its servers.

    Args:
        target: `sg://host:port` of a server; it tells of the others.
        secret: The cluster's secret; by default STRATAGEM_SECRET or STRATAGEM_SECRET_FILE.
        tls: Certificates; by default STRATAGEM_TLS_CA, _CERT and _KEY.
        timeout: Seconds that each call may take, all told. A task that is not up yet is waited for.

    Example:
        >>> with Session(server.target) as session:
        ...     with device("/job:ps/task:0"):
        ...         w = session.variable(np.zeros(3), name="w")
        ...     step = session.function(lambda w, x: (w + x, x.sum()), device="/job:worker/task:1", assign_to=[w])
        ...     total = step(w, np.ones(3))
    """

    def __init__(
        self,
        target: str,
        secret: str | bytes | None = None,
        tls: TLS | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        self.timeout = timeout
        self.name = f"session-{secrets.token_hex(4)}"
        self._numbers = itertools.count()
        self._unnamed: list[RemoteVariable] = []
        credentials = Credentials.from_arguments(secret, tls)
        with Peer(target, credentials=credentials, caller=self.name) as peer:
            peer.call("ping", timeout=timeout)
            self._master = str(peer.info["task"])
            self.cluster = ClusterSpec({job: dict(tasks) for job, tasks in peer.info["cluster"].items()})
        self._peers = Peers(self.cluster, credentials, self.name)
        self._own_address = _own_address()

    @property
    def peers(self) -> Peers:
        """All tasks of the cluster, for upper layers that make calls of their own."""
        return self._peers

    # Where.

    def devices(self) -> list[RemoteDevice]:
        """Every device of every task; tasks that are not up yet are waited for.

        This process's own task is left out if it runs no server, as the client of a cluster need not.
        """
        found: list[RemoteDevice] = []
        for task in self._peers.tasks:
            is_own = self._peers.address(task) == self._own_address
            try:
                fields = self._peers[task].call("devices", timeout=self.timeout, wait=not is_own).fields
            except TaskUnreachable:
                if not is_own:
                    raise
            else:
                found += [
                    RemoteDevice(str(each["name"]), str(each["description"])) for each in fields["devices"]
                ]
        return found

    def _place(self, device: str | DeviceSpec | None, variable: object | None = None) -> TaskDevice:
        spec = current_device(variable)
        if device is not None:
            spec = spec.make_merged_spec(as_spec(device))
        return TaskDevice.of(spec, self._master)

    # Variables.

    def variable(
        self, value: Any, name: str | None = None, device: str | DeviceSpec | None = None
    ) -> RemoteVariable:
        """Put a variable on the task that `device` (or the enclosing `sg.device`) names.

        A variable of that name and kind that is there already gets the new value, as if it were initialised
        again; `get_variable` takes it as it is. One without a name is deleted with the session.

        Args:
            value: Its initial value: anything NumPy can make an array of, or bytes.
            name: Its name on that task, by which other clients find it.
            device: Where it lives; the session's own server by default.
        """
        if name is not None and (not isinstance(name, str) or not name):
            raise VariableMismatch(f"a variable's name is text such as 'w', not {name!r}")
        array, holds_bytes = to_array(value)
        place = self._place(device, array)
        label = name or f"{self.name}-variable-{next(self._numbers)}"
        fields = {"names": [label], "device": place.device, "holds_bytes": holds_bytes}
        peer = self._peers[place.task]
        known = peer.call("variable.put", fields, [array], timeout=self.timeout).fields
        variable = RemoteVariable.described(known, peer, self.timeout)
        log_placement(label, "Variable", variable.device)
        if name is None:
            self._unnamed.append(variable)
        return variable

    def get_variable(self, name: str, device: str | DeviceSpec | None = None) -> RemoteVariable:
        """A variable that is there already, whoever made it."""
        peer = self._peers[self._place(device).task]
        known = peer.call("variable.describe", {"names": [name]}, timeout=self.timeout).fields
        return RemoteVariable.described(known, peer, self.timeout)

    # Programs.

    def function(
        self,
        fn: Callable[..., Any],
        device: str | DeviceSpec | None = None,
        assign_to: RemoteVariable | Sequence[RemoteVariable] = (),
        add_to: RemoteVariable | Sequence[RemoteVariable] = (),
    ) -> RemoteFunction:
        """A function that runs on the task that `device` names, compiled once for each shape of arguments.

        Arguments that are RemoteVariables are fetched by that task itself; the first results go from it to the
        variables in `assign_to`, those after them are added to the variables in `add_to`, where these are: no
        addition is lost, however many come at the same time. Only the other results come back here.
        """
        assigned, added = _variables("assign_to", assign_to), _variables("add_to", add_to)
        if both := set(assigned) & set(added):
            names = ", ".join(sorted(variable.name for variable in both))
            raise VariableMismatch(f"assign_to and add_to both name {names}: give a variable to one of them")
        return RemoteFunction(
            TracedPrograms(fn, [*assigned, *added]),
            self._place(device),
            assigned,
            added,
            self._peers,
            self.timeout,
        )

    def run(self, fn: Callable[..., Any], *args: Any, device: str | DeviceSpec | None = None) -> Any:
        """Run a function once, where `device` (or the enclosing `sg.device`) says; the result as NumPy arrays."""
        return self.function(fn, device)(*args)

    # Life.

    def status(self) -> dict[str, Fields]:
        """What each task says of itself: variables, programs, calls, bytes, last error; `error` if it is silent."""

        def ask(task: str) -> Fields:
            try:
                return self._peers[task].call("status", timeout=self.timeout, wait=False).fields
            except StratagemError as error:
                return {"error": str(error)}

        with ThreadPoolExecutor(max_workers=32) as threads:
            return dict(zip(self._peers.tasks, threads.map(ask, self._peers.tasks), strict=True))

    def close(self) -> None:
        """Delete variables that have no name, and close every connection."""
        names = defaultdict(list)
        for variable in self._unnamed:
            names[variable.task].append(variable.name)
        self._unnamed.clear()
        for task, own in names.items():
            with contextlib.suppress(StratagemError):  # the task is gone, and the variables with it
                self._peers[task].call(
                    "variable.forget", {"names": own}, timeout=FAREWELL_SECONDS, wait=False
                )
        self._peers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _variables(argument: str, given: RemoteVariable | Sequence[RemoteVariable]) -> list[RemoteVariable]:
    found = [given] if isinstance(given, RemoteVariable) else list(given or ())
    if not all(isinstance(each, RemoteVariable) for each in found) or len(set(found)) < len(found):
        raise VariableMismatch(
            f"{argument} takes variables of this session, each once, such as [w, b]; not {given!r}"
        )
    return found


def _own_address() -> str | None:
    """Where this process listens, if it is a task of some cluster; a session does not need to be one."""
    try:
        own = resolve_cluster()
    except ClusterError:
        return None
    return None if own is None else own.address
