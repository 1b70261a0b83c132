"""`DeviceSpec`: the name of a device, or the parts of it that are known, as TensorFlow's `tf.DeviceSpec`."""

from dataclasses import dataclass
from dataclasses import replace as dataclass_replace
from typing import Any, Self

from stratagem.devices.checks import whole_number
from stratagem.devices.grammar import DEVICE_TYPE, JOB_NAME, parse
from stratagem.errors import DeviceSpecError


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device in a cluster, every part optional; what is left out means any.

    Specs are immutable, compare by their fields and can be keys. Device types are kept in capitals.

    Args:
        job: name of the job, such as `"worker"`.
        replica: index of the replica.
        task: index of the task in its job.
        device_type: `"CPU"`, `"GPU"`, `"TPU"`, or the name of another kind of device.
        device_index: index among the devices of that type. Without a type it shows in no string, and
            takes effect once merged with a spec that has one.

    Raises:
        DeviceSpecError: if a field is of the wrong kind.

    Example:
        >>> spec = DeviceSpec(job="worker", task=1, device_type="gpu", device_index=0)
        >>> spec.to_string()
        '/job:worker/task:1/device:GPU:0'
        >>> spec == DeviceSpec.from_string("/job:worker/task:1/gpu:0")
        True
    """

    job: str | None = None
    replica: int | None = None
    task: int | None = None
    device_type: str | None = None
    device_index: int | None = None

    def __post_init__(self) -> None:
        if self.job is not None and not (isinstance(self.job, str) and JOB_NAME.fullmatch(self.job)):
            raise DeviceSpecError(
                f"job is {self.job!r}; it has to be a name of letters, digits and underscores that starts "
                "with a letter, such as 'worker', or None for any job"
            )
        kind = self.device_type
        if kind is not None:
            if not (isinstance(kind, str) and DEVICE_TYPE.fullmatch(kind)):
                raise DeviceSpecError(
                    f"device_type is {kind!r}; it has to be a name such as 'CPU', 'GPU' or 'TPU', or None for any"
                )
            object.__setattr__(self, "device_type", kind.upper())
        for field in ("replica", "task", "device_index"):
            object.__setattr__(self, field, _index(field, getattr(self, field)))

    @classmethod
    def from_string(cls, spec: str) -> Self:
        """Read a device string: canonical, short (`/gpu:0`, `/cpu:*`, `/tpu`), or empty.

        Raises:
            DeviceSpecError: if it is not a device string; the message quotes the wrong part.

        Example:
            >>> DeviceSpec.from_string("/gpu:*")
            DeviceSpec(device_type='GPU')
        """
        if not isinstance(spec, str):
            raise DeviceSpecError(f"a device string has to be a str such as '/gpu:0', not {spec!r}")
        return cls(**parse(spec))

    def to_string(self) -> str:
        """The canonical string, with `*` for a device type of any index.

        Example:
            >>> DeviceSpec(job="ps", device_type="CPU").to_string()
            '/job:ps/device:CPU:*'
        """
        named = [("job", self.job), ("replica", self.replica), ("task", self.task)]
        text = "".join(f"/{name}:{value}" for name, value in named if value is not None)
        if self.device_type is None:
            return text
        return f"{text}/device:{self.device_type}:{'*' if self.device_index is None else self.device_index}"

    def make_merged_spec(self, inner: "DeviceSpec") -> Self:
        """This spec with every field that `inner` names taken from `inner`.

        Each field is merged by itself, as in TensorFlow: `/gpu:1` merged with `/cpu` is `/cpu:1`.

        Example:
            >>> outer = DeviceSpec.from_string("/job:ps/cpu:0")
            >>> outer.make_merged_spec(DeviceSpec(task=1)).to_string()
            '/job:ps/task:1/device:CPU:0'
        """
        if not isinstance(inner, DeviceSpec):
            raise DeviceSpecError(
                f"only a DeviceSpec can be merged, not {inner!r}; read a string with DeviceSpec.from_string"
            )
        return dataclass_replace(self, **inner._named())

    def replace(self, **fields: Any) -> Self:
        """This spec with the given fields instead of its own; `None` clears a field.

        Example:
            >>> DeviceSpec.from_string("/job:ps/task:0").replace(task=1).to_string()
            '/job:ps/task:1'
        """
        unknown = sorted(set(fields) - set(self.__slots__))
        if unknown:
            raise DeviceSpecError(
                f"a DeviceSpec has no field {', '.join(unknown)}; it has {', '.join(self.__slots__)}"
            )
        return dataclass_replace(self, **fields)

    def _named(self) -> dict[str, Any]:
        values = {field: getattr(self, field) for field in self.__slots__}
        return {field: value for field, value in values.items() if value is not None}

    def __str__(self) -> str:
        return self.to_string()

    def __repr__(self) -> str:
        return f"DeviceSpec({', '.join(f'{field}={value!r}' for field, value in self._named().items())})"


def as_spec(device: str | DeviceSpec) -> DeviceSpec:
    """The spec itself, or the one that a device string names."""
    return device if isinstance(device, DeviceSpec) else DeviceSpec.from_string(device)


def _index(field: str, value: object) -> int | None:
    if value is None:
        return None
    number = whole_number(value)
    if number is None or number < 0:
        raise DeviceSpecError(f"{field} is {value!r}; it has to be a whole number from 0 up, or None for any")
    return number
