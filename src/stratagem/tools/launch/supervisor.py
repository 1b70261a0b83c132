"""Carries out the policy: starts the tasks' keepers, passes on what they print, and leaves nothing behind.

One thread and one `select`: output, ends of tasks, signals and time all arrive in the same loop.
"""

import contextlib
import math
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType

from stratagem import environment
from stratagem.errors import LaunchError
from stratagem.tools.launch import keeper
from stratagem.tools.launch.failure import Failure, LastWords, report
from stratagem.tools.launch.job_shape import JobShape, Run
from stratagem.tools.launch.output import Lines, LogFiles, Writer, label
from stratagem.tools.launch.policy import (
    Exited,
    Finish,
    Instruction,
    Kill,
    Passed,
    Policy,
    Say,
    Send,
    Signalled,
    Start,
)
from stratagem.tools.launch.ports import ReservedPort
from stratagem.tools.launch.running_jobs import note
from stratagem.tools.launch.task import EXIT_FAILED, TaskName

_ORDERS = {signal.SIGINT: keeper.INTERRUPT, signal.SIGTERM: keeper.TERMINATE}
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
"""A task that was told to stop and ends by one of these has done so."""
_CHUNK = 1 << 16
FLUSH_SECONDS = 0.3
"""How long the last lines may take to be written when all tasks have ended."""
STUBBORN_SECONDS = 0.3
"""How long a keeper may take to kill its task before the launcher does it over its head."""


@dataclass
class _Running:
    """One start of one task, from the launcher's side."""

    task: TaskName
    process: subprocess.Popen[bytes]
    control: socket.socket
    streams: dict[int, Lines]  # pipe descriptor -> lines; stdout first, then stderr
    label: bytes
    last_words: LastWords = field(default_factory=LastWords)
    told_at: float = math.inf  # when it was told to stop: what it does after that is no failure
    kill_over_at: float | None = None

    def __post_init__(self) -> None:
        self.stdout, self.stderr = self.streams


class Supervisor:
    """Runs one job to its end.

    Example:
        code = Supervisor(shape, Policy(shape.tasks), inherited=os.environ).run()
    """

    def __init__(
        self,
        shape: JobShape,
        policy: Policy,
        *,
        inherited: Mapping[str, str],
        log_files: LogFiles | None = None,
        colour: bool = False,
    ) -> None:
        self._shape = shape
        self._policy = policy
        self._log_files = log_files
        self._colour = colour
        self._ports = {task: ReservedPort() for task in shape.tasks}
        self._run = Run(
            shape,
            identity=uuid.uuid4().hex,
            secret=secrets.token_hex(32),
            inherited=inherited,
            addresses={task: port.address for task, port in self._ports.items()},
        )
        self._running: dict[TaskName, _Running] = {}
        self._failures: list[Failure] = []
        self._exit_code: int | None = None
        self._selector = selectors.DefaultSelector()
        self._paused = False
        self._wakeup, self._wake = os.pipe()
        for descriptor in (self._wakeup, self._wake):
            os.set_blocking(descriptor, False)
        self._strangers: set[int] = set()
        self._writer = Writer(self._notify)

    def run(self) -> int:
        """Start every task, supervise them, and return the launcher's exit code."""
        forget = self._note()
        keeper.adopt_orphans()
        self._strangers = keeper.descendants(os.getpid())
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        for number in _SIGNALS:
            if before[number] is not signal.SIG_IGN:  # under nohup a closed terminal is to be survived
                signal.signal(number, _remember)
        previous = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        try:
            self._carry_out(self._policy.begin(time.monotonic()))
            while self._exit_code is None:
                self._turn()
            if self._exit_code == EXIT_FAILED and self._failures:
                self._say(report(self._failures))
            return self._exit_code
        finally:
            self._end_everything()
            forget()
            signal.set_wakeup_fd(previous)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._writer.close(FLUSH_SECONDS)

    def _note(self) -> Callable[[], None]:
        """Let this user's `stratagem status` find the job; what to do when it is over."""
        try:
            return note(self._run.noted, self._run.identity)
        except (LaunchError, OSError) as error:
            self._say(f"stratagem status will not find this job: {error}")
            return lambda: None

    # One turn of the loop.

    def _turn(self) -> None:
        now = time.monotonic()
        times = [
            running.kill_over_at for running in self._running.values() if running.kill_over_at is not None
        ]
        if self._policy.wake_at is not None:
            times.append(self._policy.wake_at)
        for key, _ in self._selector.select(max(0.0, min(times) - now) if times else None):
            running: _Running | None = key.data
            if running is None:
                self._heed()
            elif self._running.get(running.task) is not running:
                pass  # it was forgotten since: its descriptors are closed, or another task's by now
            elif key.fd == running.control.fileno():
                self._ended(running)
            else:
                self._read(running, key.fd)
        self._hold_back(self._writer.full)
        now = time.monotonic()
        for running in list(self._running.values()):
            if running.kill_over_at is not None and now >= running.kill_over_at:
                running.kill_over_at = now + STUBBORN_SECONDS
                self._kill_over(running)
        if self._policy.wake_at is not None and now >= self._policy.wake_at:
            self._carry_out(self._policy.handle(Passed(), now))

    def _heed(self) -> None:
        numbers = os.read(self._wakeup, 64)
        if self._writer.broken:  # nobody reads us any more: the terminal or the pipe is closed
            self._writer.broken = False
            numbers += bytes([signal.SIGHUP])
        for number in numbers:
            if number in _SIGNALS:
                self._carry_out(self._policy.handle(Signalled(signal.Signals(number)), time.monotonic()))

    def _notify(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake, b"\0")  # no signal has this number: it only wakes the loop

    # Instructions.

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Start(task, generation):
                    self._start(task, generation)
                case Send(task, number):
                    self._order(task, _ORDERS[number])
                    self._running[task].told_at = time.monotonic()
                case Kill(task):
                    self._order(task, keeper.KILL)
                    self._running[task].kill_over_at = time.monotonic() + STUBBORN_SECONDS
                case Say(text):
                    self._say(text)
                case Finish(code):
                    self._exit_code = code

    def _start(self, task: TaskName, generation: int) -> None:
        self._failures = [failure for failure in self._failures if failure.task != task]  # forgiven
        ours, theirs = socket.socketpair()
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        task_socket = self._ports[task].socket_for_task()
        env = self._run.task_environment(task, generation)
        env[environment.LISTEN_FD] = str(task_socket.fileno())
        argv = [sys.executable, "-I", "-S", keeper.__file__, str(theirs.fileno()), str(task_socket.fileno())]
        try:
            process = subprocess.Popen(
                [*argv, *self._shape.command_of(task)],
                stdin=subprocess.DEVNULL,
                stdout=out_end,
                stderr=err_end,
                pass_fds=(theirs.fileno(), task_socket.fileno()),
                start_new_session=True,  # the terminal's Ctrl-C comes to us alone; we pass it on
                env=env,
            )
        except OSError as error:
            raise LaunchError(f"cannot start {task}: {error.strerror}") from error
        finally:
            theirs.close()
            task_socket.close()
            os.close(out_end)
            os.close(err_end)
        width = max(len(str(other)) for other in self._shape.tasks)
        position = self._shape.tasks.index(task)
        running = _Running(
            task,
            process,
            ours,
            {out: Lines(), err: Lines()},
            label(task, position, width=width, colour=self._colour),
        )
        self._running[task] = running
        for descriptor in running.streams:
            os.set_blocking(descriptor, False)
            if not self._paused:
                self._selector.register(descriptor, selectors.EVENT_READ, running)
        self._selector.register(ours, selectors.EVENT_READ, running)

    def _order(self, task: TaskName, order: bytes) -> None:
        with contextlib.suppress(OSError):  # it has ended; we shall hear of it
            self._running[task].control.sendall(order)

    def _say(self, text: str) -> None:
        lines = [
            f"stratagem: {line}" if number == 0 else line for number, line in enumerate(text.splitlines())
        ]
        self._writer.put(2, "".join(f"{line}\n" for line in lines).encode())

    # Output.

    def _read(self, running: _Running, descriptor: int) -> bool:
        """Pass on what a task has printed; false at the end, or when nothing is there."""
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return False
        lines = running.streams[descriptor]
        if data:
            self._show(running, descriptor, lines.feed(data))
        else:
            self._show(running, descriptor, lines.flush())
            with contextlib.suppress(KeyError):
                self._selector.unregister(descriptor)
        return bool(data)

    def _show(self, running: _Running, descriptor: int, lines: list[bytes]) -> None:
        if not lines:
            return
        is_stderr = descriptor == running.stderr
        if is_stderr:
            now = time.monotonic()
            for line in lines:
                running.last_words.feed(line, now)
        if self._log_files is not None:
            problem = self._log_files.write(running.task, lines)
            if problem is not None:
                self._say(problem)
        self._writer.put(2 if is_stderr else 1, b"".join(running.label + line + b"\n" for line in lines))

    def _hold_back(self, full: bool) -> None:
        """Stop or go on reading what tasks print, as the terminal lets us."""
        if full == self._paused:
            return
        self._paused = full
        for running in self._running.values():
            for descriptor in running.streams:
                if full:
                    with contextlib.suppress(KeyError):
                        self._selector.unregister(descriptor)
                else:
                    self._selector.register(descriptor, selectors.EVENT_READ, running)

    # Ends.

    def _ended(self, running: _Running) -> None:
        """The keeper has reported that its task is gone, or is gone itself."""
        try:
            said = running.control.recv(64)
        except OSError:
            said = b""
        process = running.process
        if said:
            code = os.waitstatus_to_exitcode(int(said))
        else:
            self._kill_over(running)
            code = -signal.SIGKILL
        process.wait()
        for descriptor in running.streams:
            while self._read(running, descriptor):
                pass
            self._show(running, descriptor, running.streams[descriptor].flush())
        self._forget(running)
        now = time.monotonic()
        failed_at = running.last_words.failed_at(now)
        obeyed = running.told_at <= now and -code in _STOPPING
        if code != 0 and failed_at <= running.told_at and not obeyed:
            self._failures.append(Failure(running.task, code, failed_at, running.last_words.text()))
        self._carry_out(self._policy.handle(Exited(running.task, code), now))

    def _kill_over(self, running: _Running) -> None:
        """End a task without its keeper's help: the keeper was killed, is stopped, or is stuck."""
        others = {other.process.pid for other in self._running.values() if other is not running}
        spared = self._strangers | others
        keeper.kill_all(lambda: keeper.descendants(os.getpid(), without=spared) - {running.process.pid})
        running.process.kill()

    def _end_everything(self) -> None:
        """Whatever happened, leave nothing: every path out of `run` ends here."""
        if self._running:
            keepers = {running.process.pid for running in self._running.values()}
            keeper.kill_all(lambda: keeper.descendants(os.getpid(), without=self._strangers) - keepers)
        for running in list(self._running.values()):
            running.process.kill()
            running.process.wait()
            self._forget(running)
        for port in self._ports.values():
            port.close()
        if self._log_files is not None:
            self._log_files.close()
        self._selector.close()

    def _forget(self, running: _Running) -> None:
        for descriptor in running.streams:
            with contextlib.suppress(KeyError):
                self._selector.unregister(descriptor)
            os.close(descriptor)
        self._selector.unregister(running.control)
        running.control.close()
        del self._running[running.task]


def _remember(number: int, frame: FrameType | None) -> None:
    """A signal handler that does nothing: the number arrives through the wake-up descriptor."""
