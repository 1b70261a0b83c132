"""Small arrays of all workers brought together in one exchange."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from stratagem.engines.workers import Array, Workers


def gathered(workers: Workers, arrays: Sequence[Any]) -> list[list[Array]]:
    """For each worker its arrays; shapes and types are the same on all."""
    own = [np.asarray(array) for array in arrays]
    packed = np.frombuffer(b"".join(array.tobytes() for array in own), np.uint8)
    return [_unpacked(each.tobytes(), own) for each in workers.gather(packed)]


def from_chief(workers: Workers, arrays: Sequence[Any]) -> list[Array]:
    """The first worker's arrays, on every worker."""
    own = [np.asarray(array) for array in arrays]
    packed = b"".join(array.tobytes() for array in own) if workers.index == 0 else b""
    return _unpacked(workers.gather(np.frombuffer(packed, np.uint8))[0].tobytes(), own)


def taken_from_chief(workers: Workers, values: tuple[list[Any], ...]) -> tuple[list[Any], ...]:
    """Lists of the first worker's arrays, on every worker."""
    told = iter(from_chief(workers, [value for each in values for value in each]))
    return tuple([jnp.asarray(next(told)) for _ in each] for each in values)


def added_up(workers: Workers, before: Sequence[Any], after: Sequence[Any]) -> list[Array]:
    """What all workers have added to values that they began with alike."""
    told = gathered(workers, after)
    return [
        (old + sum(each[place] - old for each in told)).astype(old.dtype)
        for place, old in enumerate(np.asarray(each) for each in before)
    ]


def mean_logs(workers: Workers, rows: int, logs: Mapping[str, Any]) -> dict[str, Any]:
    """The means over all workers' rows of what each tells of its own; who has none knows no names either."""
    own = json.dumps([rows, {name: np.asarray(value).tolist() for name, value in logs.items()}])
    told = [json.loads(each.tobytes()) for each in workers.gather(np.frombuffer(own.encode(), np.uint8))]
    told = [each for each in told if each[0]]
    total = sum(count for count, _ in told)
    names = told[0][1] if told else ()
    return {name: sum(count * np.asarray(each[name]) for count, each in told) / total for name in names}


def _unpacked(packed: bytes, like: Sequence[Array]) -> list[Array]:
    found, start = [], 0
    for array in like:
        found.append(np.frombuffer(packed, array.dtype, array.size, start).reshape(array.shape))
        start += array.nbytes
    return found
