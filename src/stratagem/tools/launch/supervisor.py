"""Carries out the policy: starts the tasks' keepers, passes on their output, and leaves no process behind.

Output, ends of tasks, signals and time all arrive in one loop, in one thread, with one `select`.
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
from stratagem.tools.launch.job_shape import JobRun, JobShape
from stratagem.tools.launch.output import LineSplitter, LogFiles, OutputWriter, task_label
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
from stratagem.tools.launch.running_jobs import register_job
from stratagem.tools.launch.tasks import (
    EXIT_FAILED,
    ReservedPort,
    StderrTail,
    TaskFailure,
    TaskName,
    failure_report,
)

_ORDERS = {signal.SIGINT: keeper.INTERRUPT, signal.SIGTERM: keeper.TERMINATE}
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
"""A task that was told to stop and ends by one of these has obeyed."""
_CHUNK = 1 << 16
FLUSH_SECONDS = 0.3
"""Time to write the last lines when all tasks have ended."""
STUBBORN_SECONDS = 0.3
"""Time that a keeper has to kill its task before the launcher does it instead."""


@dataclass
class _RunningTask:
    """One start of one task, as the launcher sees it."""

    task: TaskName
    process: subprocess.Popen[bytes]
    control: socket.socket
    streams: dict[int, LineSplitter]  # by pipe descriptor: stdout first, then stderr
    label: bytes
    stderr_tail: StderrTail = field(default_factory=StderrTail)
    stop_sent_at: float = math.inf  # an error after this is not a failure
    kill_directly_at: float | None = None

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
        self._run = JobRun(
            shape,
            identity=uuid.uuid4().hex,
            secret=secrets.token_hex(32),
            inherited=inherited,
            addresses={task: port.address for task, port in self._ports.items()},
        )
        self._running: dict[TaskName, _RunningTask] = {}
        self._failures: list[TaskFailure] = []
        self._exit_code: int | None = None
        self._selector = selectors.DefaultSelector()
        self._is_paused = False
        self._wakeup, self._wake = os.pipe()
        for descriptor in (self._wakeup, self._wake):
            os.set_blocking(descriptor, False)
        self._other_descendants: set[int] = set()  # of this process, but not of this job
        self._writer = OutputWriter(self._wake_up)

    def run(self) -> int:
        """Start every task, supervise them, and return the launcher's exit code."""
        unregister = self._register()
        keeper.adopt_orphans()
        self._other_descendants = keeper.descendants(os.getpid())
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        for number in _SIGNALS:
            if before[number] is not signal.SIG_IGN:  # under nohup the job survives a closed terminal
                signal.signal(number, _do_nothing)
        previous = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        try:
            self._carry_out(self._policy.begin(time.monotonic()))
            while self._exit_code is None:
                self._turn()
            if self._exit_code == EXIT_FAILED and self._failures:
                self._say(failure_report(self._failures))
            return self._exit_code
        finally:
            self._end_everything()
            unregister()
            signal.set_wakeup_fd(previous)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._writer.close(FLUSH_SECONDS)

    def _register(self) -> Callable[[], None]:
        """Let this user's `stratagem status` find the job. Return the call that ends this."""
        try:
            return register_job(self._run.running_job, self._run.identity)
        except (LaunchError, OSError) as error:
            self._say(f"stratagem status will not find this job: {error}")
            return lambda: None

    # The loop.

    def _turn(self) -> None:
        now = time.monotonic()
        times = [at for running in self._running.values() if (at := running.kill_directly_at) is not None]
        if self._policy.wake_at is not None:
            times.append(self._policy.wake_at)
        for key, _ in self._selector.select(max(0.0, min(times) - now) if times else None):
            running: _RunningTask | None = key.data
            if running is None:
                self._take_signals()
            elif self._running.get(running.task) is not running:
                pass  # it was removed in this turn: its descriptors are closed, or another task's by now
            elif key.fd == running.control.fileno():
                self._finish_task(running)
            else:
                self._read(running, key.fd)
        self._pause_reading(self._writer.is_full)
        now = time.monotonic()
        for running in list(self._running.values()):
            if running.kill_directly_at is not None and now >= running.kill_directly_at:
                running.kill_directly_at = now + STUBBORN_SECONDS
                self._kill_directly(running)
        if self._policy.wake_at is not None and now >= self._policy.wake_at:
            self._carry_out(self._policy.handle(Passed(), now))

    def _take_signals(self) -> None:
        numbers = os.read(self._wakeup, 64)
        if self._writer.is_broken:  # the terminal or the pipe is closed
            self._writer.is_broken = False
            numbers += bytes([signal.SIGHUP])
        for number in numbers:
            if number in _SIGNALS:
                self._carry_out(self._policy.handle(Signalled(signal.Signals(number)), time.monotonic()))

    def _wake_up(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake, b"\0")  # wakes the loop; no signal has this number

    # Instructions.

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Start(task, generation):
                    self._start(task, generation)
                case Send(task, number):
                    self._order(task, _ORDERS[number])
                    self._running[task].stop_sent_at = time.monotonic()
                case Kill(task):
                    self._order(task, keeper.KILL)
                    self._running[task].kill_directly_at = time.monotonic() + STUBBORN_SECONDS
                case Say(text):
                    self._say(text)
                case Finish(code):
                    self._exit_code = code

    def _start(self, task: TaskName, generation: int) -> None:
        self._failures = [failure for failure in self._failures if failure.task != task]  # restarted
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
                start_new_session=True,  # the terminal's Ctrl-C reaches only the launcher, which passes it on
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
        running = _RunningTask(
            task,
            process,
            ours,
            {out: LineSplitter(), err: LineSplitter()},
            task_label(task, position, width=width, colour=self._colour),
        )
        self._running[task] = running
        for descriptor in running.streams:
            os.set_blocking(descriptor, False)
            if not self._is_paused:
                self._selector.register(descriptor, selectors.EVENT_READ, running)
        self._selector.register(ours, selectors.EVENT_READ, running)

    def _order(self, task: TaskName, order: bytes) -> None:
        with contextlib.suppress(OSError):  # it has ended, which the loop will notice
            self._running[task].control.sendall(order)

    def _say(self, text: str) -> None:
        self._writer.put(2, f"stratagem: {text}\n".encode())

    # Output.

    def _read(self, running: _RunningTask, descriptor: int) -> bool:
        """Pass on output of a task. Return False at its end, or when there is none now."""
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

    def _show(self, running: _RunningTask, descriptor: int, lines: list[bytes]) -> None:
        if not lines:
            return
        is_stderr = descriptor == running.stderr
        if is_stderr:
            now = time.monotonic()
            for line in lines:
                running.stderr_tail.feed(line, now)
        if self._log_files is not None:
            problem = self._log_files.write(running.task, lines)
            if problem is not None:
                self._say(problem)
        self._writer.put(2 if is_stderr else 1, b"".join(running.label + line + b"\n" for line in lines))

    def _pause_reading(self, is_full: bool) -> None:
        """Stop reading the output of tasks when the backlog is full, and resume when it is not."""
        if is_full == self._is_paused:
            return
        self._is_paused = is_full
        for running in self._running.values():
            for descriptor in running.streams:
                if is_full:
                    with contextlib.suppress(KeyError):
                        self._selector.unregister(descriptor)
                else:
                    self._selector.register(descriptor, selectors.EVENT_READ, running)

    # Ends.

    def _finish_task(self, running: _RunningTask) -> None:
        """Handle the end of a task, which its keeper has reported, or the end of the keeper itself."""
        try:
            status = running.control.recv(64)
        except OSError:
            status = b""
        if status:
            code = os.waitstatus_to_exitcode(int(status))
        else:
            self._kill_directly(running)
            code = -signal.SIGKILL
        running.process.wait()
        for descriptor in running.streams:
            while self._read(running, descriptor):
                pass
            self._show(running, descriptor, running.streams[descriptor].flush())
        self._remove(running)
        now = time.monotonic()
        failed_at = running.stderr_tail.failed_at(now)
        has_obeyed = running.stop_sent_at <= now and -code in _STOPPING
        if code != 0 and failed_at <= running.stop_sent_at and not has_obeyed:
            self._failures.append(TaskFailure(running.task, code, failed_at, running.stderr_tail.text()))
        self._carry_out(self._policy.handle(Exited(running.task, code), now))

    def _kill_directly(self, running: _RunningTask) -> None:
        """Kill a task without its keeper, which was killed, is stopped, or is stuck."""
        keepers = {other.process.pid for other in self._running.values() if other is not running}
        spared = self._other_descendants | keepers
        keeper.kill_all(lambda: keeper.descendants(os.getpid(), without=spared) - {running.process.pid})
        running.process.kill()

    def _end_everything(self) -> None:
        """Leave nothing behind; every path out of `run` ends here."""
        if self._running:
            keepers = {running.process.pid for running in self._running.values()}
            keeper.kill_all(
                lambda: keeper.descendants(os.getpid(), without=self._other_descendants) - keepers
            )
        for running in list(self._running.values()):
            running.process.kill()
            running.process.wait()
            self._remove(running)
        for port in self._ports.values():
            port.close()
        if self._log_files is not None:
            self._log_files.close()
        self._selector.close()

    def _remove(self, running: _RunningTask) -> None:
        for descriptor in running.streams:
            with contextlib.suppress(KeyError):
                self._selector.unregister(descriptor)
            os.close(descriptor)
        self._selector.unregister(running.control)
        running.control.close()
        del self._running[running.task]


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Handle a signal by doing nothing: its number arrives through the wake-up descriptor."""
