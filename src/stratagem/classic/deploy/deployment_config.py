"""`DeploymentConfig`: how many clones and replicas of a model there are, and which device has what. Needs no JAX."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stratagem.devices import DeviceSpec, ReplicaDeviceSetter, replica_device_setter
from stratagem.devices.whole_numbers import whole_number
from stratagem.errors import StrategyError

_HOST = "/device:CPU:0"


@dataclass(frozen=True)
class DeploymentConfig:
    """Where the clones of a model compute, and where its variables live.

    A *replica* is one worker process; it runs `num_clones` *clones* of the model, one per device. Without
    parameter servers there is one replica, and the variables live in its host's memory. With parameter servers
    (`num_ps_tasks`), these hold the variables in turn, and any number of replicas may train them.

    Args:
        num_clones: The number of clones in each replica.
        clone_on_cpu: Whether all clones compute on the CPU, instead of one on each GPU.
        replica_id: The number of this process among the replicas; replica 0 makes the variables.
        num_replicas: The number of replicas.
        num_ps_tasks: The number of parameter servers; 0 for none.
        worker_job_name: The job of the replicas.
        ps_job_name: The job of the parameter servers.
        clone_devices: The devices of the clones if they are not GPUs but TPUs, for example, or virtual CPU devices.

    Raises:
        StrategyError: The arguments do not fit together. It is a `ValueError`.

    Example:
        >>> config = DeploymentConfig(num_clones=2, num_ps_tasks=1)
        >>> config.clone_device(1), config.clone_scope(1), config.optimizer_device()
        ('/job:worker/device:GPU:1', 'clone_1', '/job:worker/device:CPU:0')
    """

    num_clones: int = 1
    clone_on_cpu: bool = False
    replica_id: int = 0
    num_replicas: int = 1
    num_ps_tasks: int = 0
    worker_job_name: str = "worker"
    ps_job_name: str = "ps"
    clone_devices: Sequence[str] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        for name in ("num_clones", "replica_id", "num_replicas", "num_ps_tasks"):
            number = whole_number(getattr(self, name))
            if number is None or number < 0:
                raise StrategyError(f"{name} is {getattr(self, name)!r}; give a whole number of at least 0")
        if self.num_replicas > 1 and self.num_ps_tasks < 1:
            raise StrategyError(
                f"{self.num_replicas} replicas share variables, so num_ps_tasks must be positive, not "
                f"{self.num_ps_tasks}: give the number of parameter servers"
            )
        if self.num_ps_tasks > 0:
            for name in ("worker_job_name", "ps_job_name"):
                if not getattr(self, name):
                    raise StrategyError(
                        f"{name} is {getattr(self, name)!r}; with parameter servers, give both jobs a name"
                    )
        if self.replica_id >= self.num_replicas:
            raise StrategyError(
                f"replica_id is {self.replica_id}; it must be less than num_replicas, which is {self.num_replicas}"
            )
        devices = self.clone_devices or ()
        if isinstance(devices, str) or not all(isinstance(device, str) for device in devices):
            raise StrategyError(
                f"clone_devices is {self.clone_devices!r}; give a list of devices, such as ['/gpu:0', '/gpu:1']"
            )
        if self.clone_devices and (self.clone_on_cpu or len(self.clone_devices) != self.num_clones):
            raise StrategyError(
                f"clone_devices names {len(self.clone_devices)} device(s); give one for each of the "
                f"{self.num_clones} clone(s), and leave out clone_on_cpu"
            )

    @property
    def ps_device(self) -> str:
        """The job of the parameter servers, such as `/job:ps`; empty without them."""
        return f"/job:{self.ps_job_name}" if self.num_ps_tasks > 0 else ""

    @property
    def worker_device(self) -> str:
        """The job of the replicas, such as `/job:worker`; empty without parameter servers."""
        return f"/job:{self.worker_job_name}" if self.num_ps_tasks > 0 else ""

    def caching_device(self) -> Callable[[Any], str] | None:
        """Return a function from an operation to the device that caches its variables: its own. `None` without servers."""
        return (lambda operation: str(operation.device)) if self.num_ps_tasks > 0 else None

    def clone_device(self, clone_index: int) -> str:
        """Return the device on which a clone computes.

        Raises:
            StrategyError: There is no such clone. It is a `ValueError`.
        """
        self._check(clone_index)
        if self.clone_devices:
            own = DeviceSpec.from_string(self.clone_devices[clone_index])
            return DeviceSpec.from_string(self.worker_device).make_merged_spec(own).to_string()
        return self.worker_device + (_HOST if self.clone_on_cpu else f"/device:GPU:{clone_index}")

    def clone_scope(self, clone_index: int) -> str:
        """Return the prefix of a clone's names: `clone_0` and so on, or an empty string if it is the only one.

        Raises:
            StrategyError: There is no such clone. It is a `ValueError`.
        """
        self._check(clone_index)
        return f"clone_{clone_index}" if self.num_clones > 1 else ""

    def optimizer_device(self) -> str:
        """Return the device on which gradients are summed and updates computed."""
        return self.worker_device + _HOST if self.num_ps_tasks > 0 or self.num_clones > 0 else ""

    def inputs_device(self) -> str:
        """Return the device on which batches are made."""
        return self.worker_device + _HOST

    def variables_device(self) -> str | ReplicaDeviceSetter:
        """Return the device of variables, or with parameter servers a function that assigns variables to them in turn.

        Each call starts a new round. `sg.device` takes either.

        Example:
            >>> import numpy
            >>> choose = DeploymentConfig(num_ps_tasks=2).variables_device()
            >>> [choose(numpy.zeros(3)) for _ in range(3)]
            ['/job:ps/task:0/device:CPU:0', '/job:ps/task:1/device:CPU:0', '/job:ps/task:0/device:CPU:0']
        """
        chooser = replica_device_setter(
            ps_tasks=self.num_ps_tasks, ps_device=self.ps_device + _HOST, worker_device=""
        )
        return _HOST if chooser is None else chooser

    def _check(self, clone_index: int) -> None:
        if not 0 <= clone_index < self.num_clones:
            raise StrategyError(
                f"clone_index is {clone_index}; it must be less than num_clones, which is {self.num_clones}"
            )


def within_process(device: str) -> DeviceSpec:
    """Return the name by which this process knows a device of its replica: without job and task.

    Example:
        >>> within_process("/job:worker/task:1/device:GPU:0")
        DeviceSpec(device_type='GPU', device_index=0)
    """
    spec = DeviceSpec.from_string(device)
    return DeviceSpec(device_type=spec.device_type, device_index=spec.device_index)
