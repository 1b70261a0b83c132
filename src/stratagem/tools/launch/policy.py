"""The launcher's decisions when a task ends, a signal comes or time passes: events in, instructions out. Pure.

The supervisor carries the instructions out. The rules:

- The job is done when every task but the servers has ended well. Servers that have not ended by themselves are then asked to.
- A task that fails is restarted while restarts are left: alone, or with the whole job as a new generation.
- Otherwise the first failure stops the job. A task that was asked to end, and says so by its exit code, leaves the others
  time to save.
"""

import math
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from stratagem.errors import LaunchError
from stratagem.tools.launch.tasks import (
    EXIT_FAILED,
    EXIT_HUNG_UP,
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    TaskName,
    describe_exit,
)

STOP_SECONDS = 1.2
"""Seconds from SIGINT or SIGTERM to SIGKILL, so that everything ends within two seconds."""
SERVER_SECONDS = 10.0
"""Time that servers have to end when all others are done: they may have something to save."""
FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0
"""Seconds before a task's first restart; doubled for each further restart, up to the longest."""
HEALTHY_SECONDS = 10.0
"""After a task has run for this long, the delay of its next restart is the first one again."""

RestartRule = Literal["task", "job"]


# Events
@dataclass(frozen=True)
class Exited:
    """A task and all processes that it started have ended."""

    task: TaskName
    code: int


@dataclass(frozen=True)
class Signalled:
    """The launcher itself got a signal, or its terminal was closed (SIGHUP)."""

    number: signal.Signals


@dataclass(frozen=True)
class Passed:
    """`Policy.wake_at` has been reached."""


Event = Exited | Signalled | Passed


# Instructions
@dataclass(frozen=True)
class Start:
    """Start a task; `generation` counts its restarts."""

    task: TaskName
    generation: int


@dataclass(frozen=True)
class Send:
    """Send a signal to a task."""

    task: TaskName
    number: signal.Signals


@dataclass(frozen=True)
class Kill:
    """Kill a task and all processes that it started, now."""

    task: TaskName


@dataclass(frozen=True)
class Say:
    """Print a message for the user."""

    text: str


@dataclass(frozen=True)
class Finish:
    """The job has ended: exit with this code."""

    code: int


Instruction = Start | Send | Kill | Say | Finish


@dataclass
class Policy:
    """The state of a job and its rules."""

    tasks: tuple[TaskName, ...]  # all tasks, in the order in which they are started
    # The tasks that only serve the others; the job does not wait for them.
    servers: frozenset[TaskName] = frozenset()
    max_restarts: int = 0  # largest number of restarts in the whole run
    # Restart the failed task alone, or the whole job. An evaluator is always restarted alone.
    rule: RestartRule = "job"
    # Seconds between SIGTERM and SIGKILL when SIGTERM asked the launcher, or a task other than a server, to end.
    grace: float = 2.0
    wake_at: float | None = None  # when to send `Passed` next; `None` for never
    _restarts: int = 0
    _delays: dict[TaskName, float] = field(default_factory=dict)  # before each task's last restart
    _started: dict[TaskName, float] = field(default_factory=dict)
    _generation: dict[TaskName, int] = field(default_factory=dict)
    _running: set[TaskName] = field(default_factory=set)
    _done: set[TaskName] = field(default_factory=set)
    _start_at: dict[TaskName, float] = field(default_factory=dict)
    # Of tasks that were asked to stop; infinite once killed.
    _kill_at: dict[TaskName, float] = field(default_factory=dict)
    _exit_code: int | None = None  # set when the job is being stopped

    def __post_init__(self) -> None:
        if not 0 <= self.grace < math.inf:
            raise LaunchError(f"--grace {self.grace}: give a number of seconds, 0 or more")

    def begin(self, now: float) -> list[Instruction]:
        """Start every task."""
        self._start_at = dict.fromkeys(self.tasks, now)
        return self._settle(now)

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take one event. Return the instructions, to be carried out in order."""
        instructions: list[Instruction]
        match event:
            case Exited(task, code):
                instructions = self._exited(task, code, now)
            case Signalled(number):
                instructions = self._signalled(number, now)
            case Passed():
                instructions = []
        return instructions + self._settle(now)

    def _exited(self, task: TaskName, code: int, now: float) -> list[Instruction]:
        self._running.discard(task)
        was_asked = self._kill_at.pop(task, None) is not None
        if self._exit_code is not None:
            is_preempted = self._exit_code == EXIT_TERMINATED and task not in self.servers
            servers = self._running if is_preempted and self._running <= self.servers else ()
            return self._stop(servers, signal.SIGTERM, now + self.grace)
        if task in self._start_at:
            return []
        if code == 0 or was_asked:
            self._done.add(task)
            return []
        failed = f"{task} failed with {describe_exit(code)}"
        if self._restarts >= self.max_restarts:
            limit = f" and --max-restarts {self.max_restarts} is reached" if self._restarts else ""
            if code == EXIT_TERMINATED and task not in self.servers:
                text = f"{task} was asked to end{limit}: stopping the job, with {self.grace:g} s to save"
                return [Say(text), *self._preempt(now)]
            return [Say(f"{failed}{limit}: stopping the job"), *self._stop_job(EXIT_FAILED, now)]
        delay = self._next_delay(task, now)
        self._restarts += 1
        is_alone = self.rule == "task" or task.job == "evaluator"
        restarted = [task] if is_alone else [other for other in self.tasks if other.job != "evaluator"]
        self._start_at.update(dict.fromkeys(restarted, now + delay))
        self._done.difference_update(restarted)
        what = "it" if is_alone else "the job"
        text = f"{failed}: restarting {what} in {delay:g} s (restart {self._restarts} of {self.max_restarts})"
        return [
            Say(text),
            *self._stop(self._running.intersection(restarted), signal.SIGTERM, now + STOP_SECONDS),
        ]

    def _next_delay(self, task: TaskName, now: float) -> float:
        """Return the seconds until a failed task is restarted: longer each time, unless it was healthy in between."""
        was_healthy = now - self._started[task] >= HEALTHY_SECONDS
        is_first = was_healthy or task not in self._delays
        self._delays[task] = FIRST_DELAY if is_first else min(2 * self._delays[task], LONGEST_DELAY)
        return self._delays[task]

    def _signalled(self, number: signal.Signals, now: float) -> list[Instruction]:
        match number:
            case signal.SIGINT if self._exit_code is not None:
                self._kill_at.update(dict.fromkeys(self._running, now))  # a second Ctrl-C: stop waiting
                return []
            case signal.SIGINT:
                return self._stop_job(EXIT_INTERRUPTED, now, signal.SIGINT)
            case signal.SIGHUP:
                return self._stop_job(EXIT_HUNG_UP, now)
            case _:
                return self._preempt(now)

    def _preempt(self, now: float) -> list[Instruction]:
        """Ask all tasks but the servers to end. The servers follow, since they may hold the values that the others save."""
        others = self._running - self.servers
        self._stop_job(EXIT_TERMINATED, now, seconds=self.grace)
        return [Send(task, signal.SIGTERM) for task in self.tasks if task in (others or self._running)]

    def _only_servers_left(self) -> bool:
        return self._done.issuperset(task for task in self.tasks if task not in self.servers)

    def _stop_job(
        self, code: int, now: float, number: signal.Signals = signal.SIGTERM, seconds: float = STOP_SECONDS
    ) -> list[Instruction]:
        if self._exit_code is None:
            self._exit_code = code
        self._start_at.clear()
        return self._stop(self._running, number, now + seconds)

    def _stop(self, tasks: Iterable[TaskName], number: signal.Signals, kill_at: float) -> list[Instruction]:
        stopped = [task for task in self.tasks if task in set(tasks)]
        self._kill_at.update({task: min(kill_at, self._kill_at.get(task, kill_at)) for task in stopped})
        return [Send(task, number) for task in stopped]

    def _settle(self, now: float) -> list[Instruction]:
        """Return the instructions that follow from the state and the time alone."""
        instructions: list[Instruction] = []
        for task in [task for task, time in self._kill_at.items() if time <= now]:
            instructions.append(Kill(task))
            self._kill_at[task] = math.inf
        if self._only_servers_left():
            self._start_at.clear()
            idle = self._running.difference(self._kill_at)
            instructions += self._stop(idle, signal.SIGTERM, now + SERVER_SECONDS)
        # A new generation waits for the end of the old one.
        is_blocked = not self._running.isdisjoint(self._start_at)
        if not is_blocked:
            for task in [task for task in self.tasks if self._start_at.get(task, math.inf) <= now]:
                del self._start_at[task]
                self._generation[task] = self._generation.get(task, -1) + 1
                self._running.add(task)
                self._started[task] = now
                instructions.append(Start(task, self._generation[task]))
        if not self._running and not self._start_at:
            instructions.append(Finish(self._exit_code or 0))
        starts = [] if is_blocked else self._start_at.values()
        soonest = min([*self._kill_at.values(), *starts], default=math.inf)
        self.wake_at = None if soonest == math.inf else soonest
        return instructions
