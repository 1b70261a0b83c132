"""`DeviceSpec`: the name of a device, or the parts of it that are known, as TensorFlow's `tf.DeviceSpec`.

Device strings are `/job:worker/replica:0/task:1/device:GPU:0`, every part optional. What TensorFlow 2 reads is read,
with the short forms `/gpu:0`, `/cpu` and `/cpu:*`. What TensorFlow accepts and then misunderstands is refused: a part
given twice, a negative or signed index, an empty name.
"""

import re
from dataclasses import dataclass
from dataclasses import replace as dataclass_replace
from typing import Any, Self, TypedDict

from stratagem.devices.whole_numbers import whole_number
from stratagem.errors import DeviceSpecError

_SHORT_TYPES = frozenset({"CPU", "GPU", "TPU", "CUSTOM", "EPU"})
"""The device types that may stand without `device:` before them."""
_NAME = re.compile(r"[a-zA-Z][_a-zA-Z0-9]*")
_INDEX = re.compile(r"[0-9]+")
_FORMS = (
    "/job:NAME /replica:N /task:N and one of /device:TYPE:N /device:TYPE:* /cpu:N /gpu:N /tpu:N /gpu:* /gpu"
)


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device in a cluster. Every part is optional; one that is left out means any.

    Specs are immutable, compare by their fields and can be keys. Device types are kept in capitals.

    Args:
        job: Name of the job, such as `"worker"`.
        replica: Index of the replica.
        task: Index of the task in its job.
        device_type: `"CPU"`, `"GPU"`, `"TPU"`, or the name of another kind of device.
        device_index: Index among the devices of that type. Without a type it shows in no string, and
            takes effect once merged with a spec that has one.

    Raises:
        DeviceSpecError: A field is of the wrong kind.

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
        if self.job is not None and not (isinstance(self.job, str) and _NAME.fullmatch(self.job)):
            raise DeviceSpecError(
                f"job is {self.job!r}; it has to be a name of letters, digits and underscores that starts "
                "with a letter, such as 'worker', or None for any job"
            )
        kind = self.device_type
        if kind is not None:
            if not (isinstance(kind, str) and _NAME.fullmatch(kind)):
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
            DeviceSpecError: It is not a device string; the message quotes the wrong part.

        Example:
            >>> DeviceSpec.from_string("/gpu:*")
            DeviceSpec(device_type='GPU')
        """
        if not isinstance(spec, str):
            raise DeviceSpecError(f"a device string has to be a str such as '/gpu:0', not {spec!r}")
        return cls(**parse_device(spec))

    def to_string(self) -> str:
        """Return the canonical string, with `*` for a device type of any index.

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
        """Return this spec with every field that `inner` names taken from `inner`.

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
        """Return this spec with some fields replaced; `None` clears a field.

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
    """Return the spec itself, or the one that a device string names."""
    return device if isinstance(device, DeviceSpec) else DeviceSpec.from_string(device)


def _index(field: str, value: object) -> int | None:
    if value is None:
        return None
    number = whole_number(value)
    if number is None or number < 0:
        raise DeviceSpecError(f"{field} is {value!r}; it has to be a whole number from 0 up, or None for any")
    return number


class DeviceFields(TypedDict, total=False):
    """The parts that a device string names."""

    job: str
    replica: int
    task: int
    device_type: str
    device_index: int


def parse_device(text: str) -> DeviceFields:
    """Split a device string into its fields.

    Raises:
        DeviceSpecError: A part is unknown, malformed or given twice; the message quotes it.

    Example:
        >>> parse_device("/job:worker/gpu:0")
        {'job': 'worker', 'device_type': 'GPU', 'device_index': 0}
    """
    fields: DeviceFields = {}
    for part in text.split("/"):
        if not part:
            continue
        values = _parse_part(part, text)
        for field in values:
            if field in fields:
                raise _error(text, part, f"names the {field.replace('_', ' ')} a second time")
        fields.update(values)
    return fields


def _parse_part(part: str, text: str) -> DeviceFields:
    match part.split(":"):
        case ["job", name]:
            if not _NAME.fullmatch(name):
                raise _error(text, part, "has no job name of letters, digits and underscores after the colon")
            return {"job": name}
        case ["replica", index]:
            return {"replica": _parse_index(index, part, text)}
        case ["task", index]:
            return {"task": _parse_index(index, part, text)}
        case ["device", kind, index]:
            if not _NAME.fullmatch(kind):
                raise _error(text, part, "has no device type such as CPU, GPU or TPU after the first colon")
            return _device(kind, index, part, text)
        case ["device", kind]:
            raise _error(text, part, f"lacks an index; write device:{kind or 'GPU'}:0, or :* for any")
        case [kind] if kind.upper() in _SHORT_TYPES:
            return {"device_type": kind.upper()}
        case [kind, index] if kind.upper() in _SHORT_TYPES:
            return _device(kind, index, part, text)
        case _:
            raise _error(text, part, "is none of them")


def _device(kind: str, index: str, part: str, text: str) -> DeviceFields:
    if index == "*":
        return {"device_type": kind.upper()}
    return {"device_type": kind.upper(), "device_index": _parse_index(index, part, text)}


def _parse_index(index: str, part: str, text: str) -> int:
    if not _INDEX.fullmatch(index):
        raise _error(text, part, f"has {index!r} where an index (0, 1, 2 …) has to stand")
    return int(index)


def _error(text: str, part: str, problem: str) -> DeviceSpecError:
    return DeviceSpecError(
        f"{text!r} is not a device: the part {part!r} {problem}. A device is made of these parts, each at most "
        f"once: {_FORMS}; for example '/job:worker/task:1/device:GPU:0'"
    )
