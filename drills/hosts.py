"""Several hosts on one machine: network namespaces joined by a switch, whose links can be cut and healed.

Everything is in namespaces of its own, also the switch; nothing is visible outside of them. All of it is removed when the
`with` ends, and what a killed run left behind is removed when the next one starts.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import threading
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

_PREFIX = "stratagem"
_CLONE_NEWNET = 0x40000000
_NAMESPACES = Path("/run/netns")
_DISABLED, _FORWARDING = "0", "3"  # states of a bridge's port
T = TypeVar("T")


class NotHere(unittest.SkipTest):
    """This machine cannot do what a drill needs, as the message says. A test that meets it is skipped."""


def enter(namespace: str) -> None:
    """Move the calling thread, and all that it starts from now on, to a network namespace."""
    descriptor = os.open(_NAMESPACES / namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(descriptor)


class Host:
    """One simulated host.

    Attributes:
        address: Its IP address.
        namespace: The name of its network namespace.
    """

    def __init__(self, namespace: str, switch: str, index: int) -> None:
        self.namespace = namespace
        self.address = f"10.77.0.{index + 1}"
        self._switch = switch
        self._port = f"port{index}"

    @property
    def command(self) -> tuple[str, ...]:
        """Return the words before a command that run it on this host; its pid is the command's own."""
        return ("ip", "netns", "exec", self.namespace)

    def run(self, function: Callable[[], T]) -> T:
        """Run a function of this process on the host: the sockets that it makes belong to the host."""
        outcome: list[Any] = []

        def inside() -> None:
            try:
                enter(self.namespace)  # only this thread moves, and it ends here
                outcome.extend((True, function()))
            except BaseException as error:  # noqa: BLE001  raised again by the caller's thread
                outcome.extend((False, error))

        thread = threading.Thread(target=inside, name=f"on {self.namespace}")
        thread.start()
        thread.join()
        went_well, value = outcome
        if not went_well:
            raise value
        found: T = value
        return found

    def cut(self) -> None:
        """Drop everything from now on, silently, as a broken cable far away does."""
        _run("bridge", "-n", self._switch, "link", "set", "dev", self._port, "state", _DISABLED)

    def heal(self) -> None:
        """Let everything through again."""
        _run("bridge", "-n", self._switch, "link", "set", "dev", self._port, "state", _FORWARDING)

    def limit(self, megabits: float | None) -> None:
        """Limit the bytes per second in each direction; `None` lifts the limit."""
        for namespace, device in ((self.namespace, "eth0"), (self._switch, self._port)):
            where = ("tc", "-n", namespace, "qdisc")
            if megabits is None:
                _run(*where, "del", "dev", device, "root")
            else:
                rate = ("rate", f"{megabits}mbit", "burst", "32kb", "latency", "200ms")
                _run(*where, "replace", "dev", device, "root", "tbf", *rate)

    def degrade(self, delay_milliseconds: float = 0, loss_percent: float = 0) -> None:
        """Delay and lose packets that this host sends.

        Raises:
            NotHere: The kernel cannot do this.
        """
        settings = ("delay", f"{delay_milliseconds}ms", "loss", f"{loss_percent}%")
        try:
            _run("tc", "-n", self.namespace, "qdisc", "replace", "dev", "eth0", "root", "netem", *settings)
        except (OSError, subprocess.CalledProcessError) as error:
            why = str(getattr(error, "stderr", "") or error).strip()
            raise NotHere(f"this kernel cannot delay or lose packets (sch_netem): {why}") from error


@contextlib.contextmanager
def simulated_hosts(count: int) -> Iterator[list[Host]]:
    """Make this number of hosts, which reach each other.

    Raises:
        NotHere: This machine cannot make them; the message says why.
    """
    _require()
    _remove_leftovers()
    base = f"{_PREFIX}-{os.getpid()}-{threading.get_native_id()}"
    switch = f"{base}-switch"
    hosts = [Host(f"{base}-{index}", switch, index) for index in range(count)]
    try:
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "switch", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "switch", "up")
        for index, host in enumerate(hosts):
            _add_host(host, switch, f"port{index}")
        yield hosts
    finally:
        for name in (*(host.namespace for host in hosts), switch):
            _remove(name)


def _add_host(host: Host, switch: str, port: str) -> None:
    _run("ip", "netns", "add", host.namespace)
    inside = ("ip", "-n", host.namespace)
    _run(*inside, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", switch)
    _run("ip", "-n", switch, "link", "set", port, "master", "switch", "up")
    _run(*inside, "address", "add", f"{host.address}/24", "dev", "eth0")
    _run(*inside, "link", "set", "eth0", "up")
    _run(*inside, "link", "set", "lo", "up")


def _require() -> None:
    for tool in ("ip", "bridge"):
        if shutil.which(tool) is None:
            raise NotHere(f"hosts are simulated with iproute2, and there is no {tool!r} here")
    probe = f"{_PREFIX}-{os.getpid()}-probe"
    try:
        _run("ip", "netns", "add", probe)
        _run("ip", "-n", probe, "link", "add", "probe", "type", "bridge")
    except subprocess.CalledProcessError as error:
        raise NotHere(
            f"network namespaces and bridges are not permitted here: {error.stderr.strip()}"
        ) from error
    finally:
        _remove(probe)


def _remove_leftovers() -> None:
    """Remove namespaces of runs that have ended."""
    if not _NAMESPACES.is_dir():
        return
    for path in _NAMESPACES.glob(f"{_PREFIX}-*"):
        owner = path.name.split("-")[1]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            _remove(path.name)


def _remove(namespace: str) -> None:
    """Kill the processes in one of our namespaces, and remove it."""
    if not (_NAMESPACES / namespace).exists():
        return
    for pid in _run("ip", "netns", "pids", namespace).split():
        if int(pid) != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    with contextlib.suppress(subprocess.CalledProcessError):
        _run("ip", "netns", "del", namespace)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout
