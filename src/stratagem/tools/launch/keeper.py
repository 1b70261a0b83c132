"""The process between the launcher and one task, which makes sure that nothing of the task outlives either.

The launcher starts this file as a program of its own (standard library only, so it starts in
milliseconds). The keeper adopts every orphan of the task (PR_SET_CHILD_SUBREAPER), and ends the whole tree
when the task has ended, when the launcher orders it, or when the launcher itself has ended.
"""

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Container
from pathlib import Path

INTERRUPT, TERMINATE, KILL = b"I", b"T", b"K"
"""The launcher's orders, of one byte each."""

ORPHAN_SECONDS = 1.0
"""Time that a task has to end after SIGTERM when its launcher has ended."""
REAP_SECONDS = 5.0
"""Time to try to kill a process that does not die (stuck in the kernel) before giving up."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {value}): {os.strerror(number)}")


def adopt_orphans() -> None:
    """Make this process the parent of every orphan among its descendants."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descendants(pid: int, without: Container[int] = ()) -> set[int]:
    """Return all living processes below `pid`, as /proc shows them now, except those in `without` and what is below them."""
    children = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it ended meanwhile
                # The name in parentheses may contain anything; state and parent are the fields after it.
                state, parent = (entry / "stat").read_bytes().rpartition(b")")[2].split()[:2]
                if state not in b"ZX":
                    children[int(parent)].append(int(entry.name))
    result: set[int] = set()
    pending = [pid]
    while pending:
        new = [child for child in children[pending.pop()] if child not in result and child not in without]
        result.update(new)
        pending.extend(new)
    return result


def send(pid: int, number: int) -> None:
    """Signal a process that may have ended already, or may be another user's by now."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def kill_all(find: Callable[[], set[int]]) -> None:
    """Kill all processes that `find` returns until it returns none, since a dying tree may still fork.

    Those that are children of this process, or became its children as orphans, are reaped.
    """
    deadline = time.monotonic() + REAP_SECONDS
    pause = 0.001
    killed: set[int] = set()
    while (left := find()) and time.monotonic() < deadline:
        for pid in left:
            send(pid, signal.SIGKILL)
        killed |= left
        time.sleep(pause)  # nothing signals the end of a process that is not a child of this one
        pause = min(2 * pause, 0.05)
    for pid in killed:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def reap() -> dict[int, int]:
    """Reap every child that has ended. Return wait statuses by process id."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = status
    return ended


def _spawn(argv: list[str]) -> int:
    """Start the task in a process group of its own; it dies with this process, however this one ends."""
    keeper = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setpgid(0, 0)
        for number in (
            signal.SIGINT,
            signal.SIGTERM,
            signal.SIGHUP,
            signal.SIGPIPE,
            signal.SIGXFSZ,
            signal.SIGCHLD,
        ):
            signal.signal(number, signal.SIG_DFL)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == keeper:  # otherwise the keeper died before prctl took effect
            os.execvp(argv[0], argv)
    except OSError as error:
        os.write(2, f"cannot run {argv[0]!r}: {error.strerror}\n".encode())
    os._exit(127)


class _Keeper:
    """The task's process tree, and the connection to the launcher."""

    def __init__(self, control: socket.socket, argv: list[str]) -> None:
        adopt_orphans()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the launcher gives orders, not the terminal
        self.control = control
        self.wakeup, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(self.wakeup, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.task = _spawn(argv)
        self.kill_at: float | None = None
        # Not select: a launcher of many tasks has descriptors above 1,023, which keep their numbers here.
        self.sources = select.poll()
        for source in (self.wakeup, self.control.fileno()):
            self.sources.register(source, select.POLLIN)

    def run(self) -> int:
        """Wait for the task's end, kill what it left behind, and return its wait status."""
        while True:
            ended = reap()
            if self.task in ended:
                self.kill_tree()
                return ended[self.task]
            wait = None if self.kill_at is None else max(0.0, self.kill_at - time.monotonic())
            ready = [descriptor for descriptor, _ in self.sources.poll(None if wait is None else 1000 * wait)]
            if self.wakeup in ready:
                os.read(self.wakeup, 4096)
            if self.control.fileno() in ready:
                self.obey(self.control.recv(16))
            if self.kill_at is not None and time.monotonic() >= self.kill_at:
                send(self.task, signal.SIGKILL)
                self.kill_tree()
                self.kill_at = None

    def obey(self, orders: bytes) -> None:
        """Carry out the launcher's orders; an empty message means that the launcher has ended."""
        if not orders:
            self.sources.unregister(self.control)
            self.signal_group(signal.SIGTERM)
            self.kill_at = time.monotonic() + ORPHAN_SECONDS
        if KILL in orders:
            self.kill_at = time.monotonic()
        elif TERMINATE in orders:
            self.signal_group(signal.SIGTERM)
        elif INTERRUPT in orders:
            self.signal_group(signal.SIGINT)

    def signal_group(self, number: int) -> None:
        """Signal the task's process group, as a terminal would."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.task, number)

    def kill_tree(self) -> None:
        """Kill all processes that the task has started."""
        kill_all(lambda: descendants(os.getpid()) - {self.task})


def main() -> None:
    """Entry point: `keeper.py CONTROL_FD TASK_FD COMMAND ARGUMENT…`; TASK_FD is the task's socket, or -1."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    keeper = _Keeper(control, sys.argv[3:])
    # The task has its own copies; copies here would keep its port and its output open after its end.
    task_fd = int(sys.argv[2])
    if task_fd >= 0:
        os.close(task_fd)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    status = keeper.run()
    with contextlib.suppress(OSError):  # the launcher has ended
        control.sendall(b"%d\n" % status)


if __name__ == "__main__":
    main()
