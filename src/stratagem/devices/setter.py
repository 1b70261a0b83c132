"""`replica_device_setter`: variables to the parameter servers, everything else to the worker."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratagem.cluster.spec import ClusterSpec
from stratagem.devices.balance import PlacementRule, RoundRobin
from stratagem.devices.checks import whole_number
from stratagem.devices.sizes import is_sized
from stratagem.devices.spec import DeviceSpec, as_spec
from stratagem.errors import ConfigurationError


@dataclass(frozen=True)
class ReplicaDeviceSetter:
    """What `replica_device_setter` returns: a function from a variable to a device string.

    Attributes:
        ps_device: the device of variables, without their task; `None` to leave them with the worker.
        worker_device: the device of everything else.
        choose_task: gives the parameter server's task for a variable.
    """

    ps_device: DeviceSpec | None
    worker_device: DeviceSpec
    choose_task: Callable[[Any], int]

    def __call__(self, variable: object) -> str:
        """The device for `variable`; for anything without a shape and a dtype, the worker's."""
        return self.place(variable, DeviceSpec())

    def place(self, variable: object, inner: DeviceSpec) -> str:
        """The same within what `inner` already says, which wins. Another job there costs no turn."""
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
    """A function for `device` that puts variables on parameter servers and all else on the worker.

    Args:
        cluster: the cluster, whose job in `ps_device` says how many parameter servers there are.
        ps_tasks: their number, where there is no `cluster`.
        ps_device: the device of variables; the task is filled in. Empty for no parameter servers.
        worker_device: the device of everything that is not a variable.
        ps_strategy: how variables are spread: `RoundRobin()` if left out, `GreedyLoadBalancing()`, or a
            function from a variable to a task index.

    Returns:
        A function from a variable (anything with `.shape` and `.dtype`) to a device string; `None` if there
        are no parameter servers.

    Raises:
        ClusterError: if the cluster is wrong.
        DeviceSpecError: if a device string is wrong.
        ConfigurationError: if another argument is, or if `ps_strategy` names a task that is not there.

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
    """A function that gives one of `tasks`, which need not start at 0 or be without gaps."""
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
