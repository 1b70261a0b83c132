"""Where something is to be in a cluster: a task, and a device of that task."""

from dataclasses import dataclass

from stratagem.devices import DeviceSpec
from stratagem.errors import DeviceSpecError
from stratagem.runtime.peers import task_name


@dataclass(frozen=True)
class Place:
    """A task by name and one of its devices (`/device:CPU:0`); an empty device is the task's own choice."""

    task: str
    device: str

    @classmethod
    def of(cls, spec: DeviceSpec, default_task: str) -> "Place":
        """The place that a device specification means.

        Example:
            >>> Place.of(DeviceSpec.from_string("/job:ps/gpu:1"), "/job:worker/task:0")
            Place(task='/job:ps/task:0', device='/device:GPU:1')
        """
        if spec.replica not in (None, 0):
            raise DeviceSpecError(
                f"{spec.to_string()!r} names replica {spec.replica}; a cluster has replica 0 only"
            )
        if spec.job is None and spec.task is not None:
            raise DeviceSpecError(
                f"{spec.to_string()!r} names a task but no job; write /job:worker/task:{spec.task}"
            )
        task = default_task if spec.job is None else task_name(spec.job, spec.task or 0)
        inner = DeviceSpec(device_type=spec.device_type, device_index=spec.device_index)
        return cls(task, inner.to_string())
