"""Rules that spread variables over tasks, and `replica_device_setter`, which applies one in `device` blocks.

A rule is an immutable description. `chooser(num_tasks)` starts it afresh as a function from a variable to a
task index, with the state that it needs; `assign` runs it over a whole list. Both depend on nothing but the
variables and their order, so that every worker comes to the same answer.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, SupportsFloat, runtime_checkable

from stratagem.cluster import ClusterSpec
from stratagem.devices.device_scope import ContextualChooser
from stratagem.devices.device_spec import DeviceSpec, as_spec
from stratagem.devices.shard_rules import byte_size, is_sized
from stratagem.devices.whole_numbers import positive, whole_number
from stratagem.errors import ConfigurationError


@runtime_checkable
class PlacementRule(Protocol):
    """A way to spread variables over tasks."""

    def chooser(self, num_tasks: int) -> Callable[[Any], int]:
        """Return a function that gives each variable, in the order of its calls, a task in `range(num_tasks)`."""
        ...


def assign(rule: PlacementRule, variables: Iterable[Any], num_tasks: int) -> list[int]:
    """Return the task index of each variable.

    Example:
        >>> assign(RoundRobin(), ["w1", "b1", "w2"], 2)
        [0, 1, 0]
    """
    choose = rule.chooser(num_tasks)
    return [choose(variable) for variable in variables]


@dataclass(frozen=True)
class RoundRobin(PlacementRule):
    """Variables go to the tasks in turn.

    Example:
        >>> choose = RoundRobin().chooser(2)
        >>> choose("w1"), choose("b1"), choose("w2")
        (0, 1, 0)
    """

    def chooser(self, num_tasks: int) -> Callable[[Any], int]:
        tasks = _tasks(num_tasks)
        turn = 0

        def choose(_: Any) -> int:
            nonlocal turn
            task, turn = turn, (turn + 1) % tasks
            return task

        return choose


@dataclass(frozen=True)
class GreedyLoadBalancing(PlacementRule):
    """Each variable goes to the task with the least load so far, the first one among equals.

    Args:
        load_fn: The load that a variable makes; its bytes if left out.

    Raises:
        ConfigurationError: `load_fn` cannot be called, or returns something other than a number from 0 up.

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


@dataclass(frozen=True)
class ReplicaDeviceSetter(ContextualChooser):
    """A function from a variable to a device string, from `replica_device_setter`. Another job inside costs no turn.

    Attributes:
        ps_device: The device of variables, without their task; `None` to leave them with the worker.
        worker_device: The device of everything else.
        choose_task: Returns the parameter server's task for a variable.
    """

    ps_device: DeviceSpec | None
    worker_device: DeviceSpec
    choose_task: Callable[[Any], int]

    def __call__(self, variable: object) -> str:
        """Return the device for a variable; for anything without a shape and a dtype, the worker's."""
        return self.place(variable, DeviceSpec())

    def place(self, variable: object, inner: DeviceSpec) -> str:
        if self.ps_device is None or not is_sized(variable):
            return self.worker_device.make_merged_spec(inner).to_string()
        device = self.ps_device
        if device.job is not None and inner.job in (None, device.job):
            device = device.replace(task=self.choose_task(variable))
        return device.make_merged_spec(inner).to_string()


def replica_device_setter(
    cluster: ClusterSpec | Mapping[str, Sequence[str] | Mapping[int, str]] | None = None,
    ps_tasks: int = 0,
    ps_device: str | DeviceSpec = "/job:ps",
    worker_device: str | DeviceSpec = "/job:worker",
    ps_strategy: PlacementRule | Callable[[Any], int] | None = None,
) -> ReplicaDeviceSetter | None:
    """Return a function for `device` that puts variables on parameter servers and all else on the worker.

    Args:
        cluster: The cluster, whose job in `ps_device` says how many parameter servers there are.
        ps_tasks: Their number, where there is no `cluster`.
        ps_device: The device of variables; the task is filled in. Empty for no parameter servers.
        worker_device: The device of everything that is not a variable.
        ps_strategy: How variables are spread: `RoundRobin()` if left out, `GreedyLoadBalancing()`, or a
            function from a variable to a task index.

    Returns:
        A function from a variable (anything with `.shape` and `.dtype`) to a device string; `None` if there
        are no parameter servers.

    Raises:
        ClusterError: The cluster is wrong.
        DeviceSpecError: A device string is wrong.
        ConfigurationError: Another argument is wrong, or `ps_strategy` names a task that does not exist.

    Example:
        >>> setter = replica_device_setter(cluster={"ps": ["a:2222", "b:2222"], "worker": ["c:2222"]})
        >>> import numpy
        >>> setter(numpy.zeros(3)), setter(numpy.zeros(3)), setter(None)
        ('/job:ps/task:0', '/job:ps/task:1', '/job:worker')
    """
    servers, worker = as_spec(ps_device), as_spec(worker_device)
    if cluster is not None:
        spec = ClusterSpec(cluster)
        tasks = spec.task_indices(servers.job) if servers.job is not None and servers.job in spec.jobs else []
    else:
        tasks = list(range(_count(ps_tasks)))
    choose = _chooser(RoundRobin() if ps_strategy is None else ps_strategy, tasks)
    if not tasks:
        return None
    return ReplicaDeviceSetter(None if servers == DeviceSpec() else servers, worker, choose)


def _count(ps_tasks: object) -> int:
    count = whole_number(ps_tasks)
    if count is None or count < 0:
        raise ConfigurationError(
            f"ps_tasks is {ps_tasks!r}; it has to be the number of parameter servers, from 0 up"
        )
    return count


def _chooser(strategy: object, tasks: list[int]) -> Callable[[Any], int]:
    """Return a function that gives one of `tasks`, which need not start at 0 or be without gaps."""
    if isinstance(strategy, type) or not (isinstance(strategy, PlacementRule) or callable(strategy)):
        raise ConfigurationError(
            f"ps_strategy is {strategy!r}; it has to be a rule, such as sg.RoundRobin() or "
            "sg.GreedyLoadBalancing(), or a function from a variable to a task index"
        )
    if isinstance(strategy, PlacementRule):
        if not tasks:
            return lambda variable: 0
        choose = strategy.chooser(len(tasks))
        return lambda variable: tasks[choose(variable)]

    def checked(variable: Any) -> int:
        task = whole_number(strategy(variable))
        if task not in tasks:
            raise ConfigurationError(
                f"ps_strategy gave task {task!r} for {variable!r}; the tasks of the parameter servers are "
                f"{', '.join(map(str, tasks))}"
            )
        return task

    return checked
