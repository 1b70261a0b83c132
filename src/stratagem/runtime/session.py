"""A client's connection to a cluster: place variables on its tasks, ship functions to them, get results back."""

import contextlib
import itertools
import secrets
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

from stratagem.cluster import resolve_cluster
from stratagem.devices import DeviceSpec, as_spec, current_device, log_placement
from stratagem.errors import ClusterError, StratagemError, TaskUnreachable, VariableMismatch
from stratagem.runtime.peers import Peers, TaskDevice, cluster_from_fields
from stratagem.runtime.remote_function import RemoteFunction, TracedPrograms
from stratagem.runtime.remote_variable import RemoteVariable, to_array
from stratagem.runtime.wire import TLS, Credentials, Fields, Peer
from stratagem.runtime.wire.peer import DEFAULT_TIMEOUT

FAREWELL_SECONDS = 1.0
"""Seconds that a closed session may take to clean up on each task."""


@dataclass(frozen=True)
class RemoteDevice:
    """A device of a task of the cluster.

    Attributes:
        name: Its full name, such as `/job:ps/replica:0/task:0/device:CPU:0`.
        description: The kind of device.
    """

    name: str
    description: str


class Session:
    """A connection to a cluster through any one of its servers.

    Args:
        target: `sg://host:port` of a server, which knows the other tasks.
        secret: The cluster's secret; by default STRATAGEM_SECRET or STRATAGEM_SECRET_FILE.
        tls: Certificates; by default STRATAGEM_TLS_CA, _CERT and _KEY.
        timeout: Seconds that each call may take, waiting for a task that is not up yet included.

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
            self.cluster = cluster_from_fields(peer.info["cluster"])
        self._peers = Peers(self.cluster, credentials, self.name)
        self._own_address = _own_address()

    @property
    def peers(self) -> Peers:
        """All tasks of the cluster, for upper layers that make calls of their own."""
        return self._peers

    # Where.

    def devices(self) -> list[RemoteDevice]:
        """Return every device of every task; wait for tasks that are not up yet.

        This process's own task is left out if it runs no server, as a client of a cluster need not.
        """
        devices: list[RemoteDevice] = []
        for task in self._peers.tasks:
            is_own = self._peers.address(task) == self._own_address
            try:
                fields = self._peers[task].call("devices", timeout=self.timeout, wait=not is_own).fields
            except TaskUnreachable:
                if not is_own:
                    raise
            else:
                devices += [
                    RemoteDevice(str(each["name"]), str(each["description"])) for each in fields["devices"]
                ]
        return devices

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

        If a variable of that name and kind exists already, it gets the new value, as if it were initialised again;
        `get_variable` takes it as it is. A variable without a name is deleted with the session.

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
        description = peer.call("variable.put", fields, [array], timeout=self.timeout).fields
        variable = RemoteVariable.from_description(description, peer, self.timeout)
        log_placement(label, "Variable", variable.device)
        if name is None:
            self._unnamed.append(variable)
        return variable

    def get_variable(self, name: str, device: str | DeviceSpec | None = None) -> RemoteVariable:
        """Return a variable that exists already, whoever made it."""
        peer = self._peers[self._place(device).task]
        description = peer.call("variable.describe", {"names": [name]}, timeout=self.timeout).fields
        return RemoteVariable.from_description(description, peer, self.timeout)

    # Programs.

    def function(
        self,
        fn: Callable[..., Any],
        device: str | DeviceSpec | None = None,
        assign_to: RemoteVariable | Sequence[RemoteVariable] = (),
        add_to: RemoteVariable | Sequence[RemoteVariable] = (),
    ) -> RemoteFunction:
        """Return a function that runs on the task that `device` names, compiled once for each shape of arguments.

        That task itself fetches arguments that are RemoteVariables. The first results go from it to the variables in
        `assign_to`; the results after them are added to the variables in `add_to` on their tasks, where no addition is lost,
        however many come at the same time. Only the other results come back here.
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
        """Run a function once where `device` (or the enclosing `sg.device`) says; return the result as NumPy arrays."""
        return self.function(fn, device)(*args)

    # Life.

    def status(self) -> dict[str, Fields]:
        """Return each task's status: variables, programs, calls, bytes, last error; only `error` if it does not answer."""

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


def _variables(argument: str, value: RemoteVariable | Sequence[RemoteVariable]) -> list[RemoteVariable]:
    variables = [value] if isinstance(value, RemoteVariable) else list(value or ())
    if not all(isinstance(each, RemoteVariable) for each in variables) or len(set(variables)) < len(
        variables
    ):
        raise VariableMismatch(
            f"{argument} takes variables of this session, each once, such as [w, b]; not {value!r}"
        )
    return variables


def _own_address() -> str | None:
    """Return where this process listens, if it is a task of a cluster; a session need not be one."""
    try:
        own = resolve_cluster()
    except ClusterError:
        return None
    return None if own is None else own.address
