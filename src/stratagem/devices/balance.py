"""Rules that spread variables over tasks: round-robin, or each to the task with the least load so far.

A rule is an immutable description. `chooser(num_tasks)` starts it afresh as a function from a variable to a
task index, with the state that it needs; `assign` runs it over a whole list. Both depend on nothing but the
variables and their order, so that every worker comes to the same answer.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, SupportsFloat, runtime_checkable

from stratagem.devices.checks import positive
from stratagem.devices.sizes import byte_size
from stratagem.errors import ConfigurationError


@runtime_checkable
class PlacementRule(Protocol):
    """A way to spread variables over tasks."""

    def chooser(self, num_tasks: int) -> Callable[[Any], int]:
        """A function that gives each variable, in the order of its calls, a task in `range(num_tasks)`."""
        ...


def assign(rule: PlacementRule, variables: Iterable[Any], num_tasks: int) -> list[int]:
    """The task index of each variable.

    Example:
        >>> assign(RoundRobin(), ["w1", "b1", "w2"], 2)
        [0, 1, 0]
    """
    choose = rule.chooser(num_tasks)
    return [choose(variable) for variable in variables]


@dataclass(frozen=True)
class RoundRobin:
    """Variables go to the tasks in turn.

    Example:
        >>> choose = RoundRobin().chooser(2)
        >>> choose("w1"), choose("b1"), choose("w2")
        (0, 1, 0)
    """

    def chooser(self, num_tasks: int) -> Callable[[Any], int]:
        """A fresh turn over `num_tasks` tasks."""
        tasks = _tasks(num_tasks)
        turn = 0

        def choose(_: Any) -> int:
            nonlocal turn
            task, turn = turn, (turn + 1) % tasks
            return task

        return choose


@dataclass(frozen=True)
class GreedyLoadBalancing:
    """Each variable goes to the task with the least load so far, the first one among equals.

    Args:
        load_fn: the load that a variable makes; its bytes if left out.

    Raises:
        ConfigurationError: if `load_fn` cannot be called, or gives something else than a number from 0 up.

    Example:
        >>> assign(GreedyLoadBalancing(load_fn=len), ["large", "w", "b"], 2)
        [0, 1, 1]
    """

    load_fn: Callable[[Any], float] = byte_size

    def __post_init__(self) -> None:
        if not callable(self.load_fn):
            raise ConfigurationError(
                f"load_fn is {self.load_fn!r}; it has to be a function from a variable to its load, such as "
                "sg.byte_size"
            )

    def chooser(self, num_tasks: int) -> Callable[[Any], int]:
        """A fresh start with `num_tasks` tasks without load."""
        loads: list[float] = [0] * _tasks(num_tasks)

        def choose(variable: Any) -> int:
            load = self._load(variable)
            task = loads.index(min(loads))
            loads[task] += load
            return task

        return choose

    def _load(self, variable: Any) -> float:
        load: object = self.load_fn(variable)
        if isinstance(load, bool) or not isinstance(load, SupportsFloat) or not 0 <= float(load) < math.inf:
            raise ConfigurationError(
                f"load_fn gave {load!r} for {variable!r}; a load has to be a number from 0 up, such as "
                "sg.byte_size gives"
            )
        return load if isinstance(load, int) else float(load)


def _tasks(num_tasks: int) -> int:
    return positive("num_tasks", num_tasks, "RoundRobin().chooser(2)")
