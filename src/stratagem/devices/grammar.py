"""The grammar of device strings: `/job:worker/replica:0/task:1/device:GPU:0`, every part optional.

It reads what TensorFlow 2 reads, with the short forms `/gpu:0`, `/cpu` and `/cpu:*`; it refuses what
TensorFlow takes and then misunderstands: a part given twice, a negative or signed index, an empty name.
"""

import re
from typing import TypedDict

from stratagem.errors import DeviceSpecError

SHORT_TYPES = frozenset({"CPU", "GPU", "TPU", "CUSTOM", "EPU"})
"""The device types that may stand without `device:` before them."""
JOB_NAME = re.compile(r"[a-zA-Z][_a-zA-Z0-9]*")
DEVICE_TYPE = re.compile(r"[a-zA-Z][_a-zA-Z0-9]*")
FORMS = (
    "/job:NAME /replica:N /task:N and one of /device:TYPE:N /device:TYPE:* /cpu:N /gpu:N /tpu:N /gpu:* /gpu"
)
_INDEX = re.compile(r"[0-9]+")


class Fields(TypedDict, total=False):
    """The parts that a device string names; those that it leaves out are not there."""

    job: str
    replica: int
    task: int
    device_type: str
    device_index: int


def parse(text: str) -> Fields:
    """Split a device string into its fields.

    Raises:
        DeviceSpecError: if a part is unknown, malformed or given twice; the message quotes it.

    Example:
        >>> parse("/job:worker/gpu:0")
        {'job': 'worker', 'device_type': 'GPU', 'device_index': 0}
    """
    fields: Fields = {}
    for part in text.split("/"):
        if not part:
            continue
        found = _parse_part(part, text)
        for field in found:
            if field in fields:
                raise _error(text, part, f"names the {field.replace('_', ' ')} a second time")
        fields.update(found)
    return fields


def _parse_part(part: str, text: str) -> Fields:
    match part.split(":"):
        case ["job", name]:
            if not JOB_NAME.fullmatch(name):
                raise _error(text, part, "has no job name of letters, digits and underscores after the colon")
            return {"job": name}
        case ["replica", index]:
            return {"replica": _index(index, part, text)}
        case ["task", index]:
            return {"task": _index(index, part, text)}
        case ["device", kind, index]:
            if not DEVICE_TYPE.fullmatch(kind):
                raise _error(text, part, "has no device type such as CPU, GPU or TPU after the first colon")
            return _device(kind, index, part, text)
        case ["device", kind]:
            raise _error(text, part, f"lacks an index; write device:{kind or 'GPU'}:0, or :* for any")
        case [kind] if kind.upper() in SHORT_TYPES:
            return {"device_type": kind.upper()}
        case [kind, index] if kind.upper() in SHORT_TYPES:
            return _device(kind, index, part, text)
        case _:
            raise _error(text, part, "is none of them")


def _device(kind: str, index: str, part: str, text: str) -> Fields:
    if index == "*":
        return {"device_type": kind.upper()}
    return {"device_type": kind.upper(), "device_index": _index(index, part, text)}


def _index(index: str, part: str, text: str) -> int:
    if not _INDEX.fullmatch(index):
        raise _error(text, part, f"has {index!r} where an index (0, 1, 2 …) has to stand")
    return int(index)


def _error(text: str, part: str, problem: str) -> DeviceSpecError:
    return DeviceSpecError(
        f"{text!r} is no device: the part {part!r} {problem}. A device is made of these parts, each at most "
        f"once: {FORMS}; for example '/job:worker/task:1/device:GPU:0'"
    )
