"""What to do when a task ends, a signal comes or time passes: events in, instructions out.

No process, clock or signal is touched here; the supervisor carries the instructions out. The rules:

- The job is done when every task but the servers has ended well. Servers that have not ended by themselves
  are then asked to.
- A task that fails is restarted while restarts are left: alone, or the whole job as a new generation.
- Otherwise the first failure ends all; one that was asked to end, and says so, leaves the others time to save.
"""

import math
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from stratagem.errors import LaunchError
from stratagem.tools.launch.task import (
    EXIT_FAILED,
    EXIT_HUNG_UP,
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    TaskName,
    describe_exit,
)

STOP_SECONDS = 1.2
"""From the polite signal to SIGKILL, so that all is over within two seconds."""
SERVER_SECONDS = 10.0
"""How long servers may take to end when all others are done: they may have something to save."""
FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0
"""Seconds before a task's first restart; doubled for each further one, up to the longest."""
HEALTHY_SECONDS = 10.0
"""A task that has run for so long is well again: should it fail, it is restarted as if for the first time."""

RestartRule = Literal["task", "job"]


# Events
@dataclass(frozen=True)
class Exited:
    """A task and all that it started are gone."""

    task: TaskName
    code: int


@dataclass(frozen=True)
class Signalled:
    """The launcher itself got a signal, or its terminal was closed (SIGHUP)."""

    number: signal.Signals


@dataclass(frozen=True)
class Passed:
    """Time has passed; sent when `Policy.wake_at` is reached."""


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
    """End a task and all that it started, now."""

    task: TaskName


@dataclass(frozen=True)
class Say:
    """Tell the user."""

    text: str


@dataclass(frozen=True)
class Finish:
    """All is over: leave with this exit code."""

    code: int


Instruction = Start | Send | Kill | Say | Finish


@dataclass
class Policy:
    """The state of a job and its rules.

    Attributes:
        tasks: All tasks, in the order in which they are started.
        servers: Those that only serve the others: the job is done without them.
        max_restarts: How many restarts the whole run may use.
        rule: Restart the failed task alone, or the whole job. An evaluator is always restarted alone.
        grace: Seconds between SIGTERM and SIGKILL when the launcher itself, or a task that is no server, was asked to
            end by SIGTERM.
        wake_at: When to send `Passed` next, if at all.
    """

    tasks: tuple[TaskName, ...]
    servers: frozenset[TaskName] = frozenset()
    max_restarts: int = 0
    rule: RestartRule = "job"
    grace: float = 2.0
    wake_at: float | None = None
    _restarts: int = 0
    _delays: dict[TaskName, float] = field(default_factory=dict)  # of each task's last restart
    _started: dict[TaskName, float] = field(default_factory=dict)
    _generation: dict[TaskName, int] = field(default_factory=dict)
    _running: set[TaskName] = field(default_factory=set)
    _done: set[TaskName] = field(default_factory=set)
    _start_at: dict[TaskName, float] = field(default_factory=dict)
    _kill_at: dict[TaskName, float] = field(default_factory=dict)  # told to stop; inf once killed
    _exit_code: int | None = None  # set when all is being stopped for good

    def __post_init__(self) -> None:
        if not 0 <= self.grace < math.inf:
            raise LaunchError(f"--grace {self.grace}: give a number of seconds, 0 or more")

    def begin(self, now: float) -> list[Instruction]:
        """Start every task."""
        self._start_at = dict.fromkeys(self.tasks, now)
        return self._settle(now)

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take one event; the instructions are to be carried out in order."""
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
        was_told = self._kill_at.pop(task, None) is not None
        if self._exit_code is not None:
            preempts = self._exit_code == EXIT_TERMINATED and task not in self.servers
            left = self._running if preempts and self._running <= self.servers else ()
            return self._stop(left, signal.SIGTERM, now + self.grace)
        if task in self._start_at:
            return []
        if code == 0 or was_told:
            self._done.add(task)
            return []
        failed = f"{task} failed with {describe_exit(code)}"
        if self._restarts >= self.max_restarts:
            spent = f" and {self._restarts} restarts are used up" if self._restarts else ""
            if code == EXIT_TERMINATED and task not in self.servers:
                text = f"{task} was asked to end{spent}: ending all, with {self.grace:g} s to save"
                return [Say(text), *self._preempt(now)]
            return [Say(f"{failed}{spent}: ending all"), *self._stop_for_good(EXIT_FAILED, now)]
        delay = self._delay(task, now)
        self._restarts += 1
        alone = self.rule == "task" or task.job == "evaluator"
        again = [task] if alone else [other for other in self.tasks if other.job != "evaluator"]
        self._start_at.update(dict.fromkeys(again, now + delay))
        self._done.difference_update(again)
        what = "it" if alone else "the job"
        text = f"{failed}: restarting {what} in {delay:g} s (restart {self._restarts} of {self.max_restarts})"
        return [Say(text), *self._stop(self._running.intersection(again), signal.SIGTERM, now + STOP_SECONDS)]

    def _delay(self, task: TaskName, now: float) -> float:
        """How long a task that has failed stays down: longer each time, unless it was well in between."""
        was_well = now - self._started[task] >= HEALTHY_SECONDS
        is_first = was_well or task not in self._delays
        self._delays[task] = FIRST_DELAY if is_first else min(2 * self._delays[task], LONGEST_DELAY)
        return self._delays[task]

    def _signalled(self, number: signal.Signals, now: float) -> list[Instruction]:
        match number:
            case signal.SIGINT if self._exit_code is not None:
                self._kill_at.update(dict.fromkeys(self._running, now))  # a second Ctrl-C: no more waiting
                return []
            case signal.SIGINT:
                return self._stop_for_good(EXIT_INTERRUPTED, now, signal.SIGINT)
            case signal.SIGHUP:
                return self._stop_for_good(EXIT_HUNG_UP, now)
            case _:
                return self._preempt(now)

    def _preempt(self, now: float) -> list[Instruction]:
        """Ask all but the servers to end; those follow, since what the others save may be with them."""
        others = self._running - self.servers
        told = self._stop_for_good(EXIT_TERMINATED, now, seconds=self.grace)
        return [send for send in told if not isinstance(send, Send) or send.task in others or not others]

    def _only_servers_left(self) -> bool:
        return self._done.issuperset(task for task in self.tasks if task not in self.servers)

    def _stop_for_good(
        self, code: int, now: float, number: signal.Signals = signal.SIGTERM, seconds: float = STOP_SECONDS
    ) -> list[Instruction]:
        if self._exit_code is None:
            self._exit_code = code
        self._start_at.clear()
        return self._stop(self._running, number, now + seconds)

    def _stop(self, tasks: Iterable[TaskName], number: signal.Signals, kill_at: float) -> list[Instruction]:
        told = [task for task in self.tasks if task in set(tasks)]
        self._kill_at.update({task: min(kill_at, self._kill_at.get(task, kill_at)) for task in told})
        return [Send(task, number) for task in told]

    def _settle(self, now: float) -> list[Instruction]:
        """What follows from the state and the time alone."""
        instructions: list[Instruction] = []
        for task in [task for task, time in self._kill_at.items() if time <= now]:
            instructions.append(Kill(task))
            self._kill_at[task] = math.inf
        if self._only_servers_left():
            self._start_at.clear()
            idle = self._running.difference(self._kill_at)
            instructions += self._stop(idle, signal.SIGTERM, now + SERVER_SECONDS)
        held = bool(
            self._running.intersection(self._start_at)
        )  # a new generation waits for the end of the old
        if not held:
            for task in [task for task in self.tasks if self._start_at.get(task, math.inf) <= now]:
                del self._start_at[task]
                self._generation[task] = self._generation.get(task, -1) + 1
                self._running.add(task)
                self._started[task] = now
                instructions.append(Start(task, self._generation[task]))
        if not self._running and not self._start_at:
            instructions.append(Finish(self._exit_code or 0))
        starts = [] if held else self._start_at.values()
        soonest = min([*self._kill_at.values(), *starts], default=math.inf)
        self.wake_at = None if soonest == math.inf else soonest
        return instructions
