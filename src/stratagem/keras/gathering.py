"""Values that the workers of a model bring together in one exchange: arrays, logs, and the state of random numbers.

Keras shuffles with, and draws initial weights from, the random numbers of NumPy and Python, which are the whole process's.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax.numpy as jnp
import numpy as np

from stratagem.engines.workers import Array, Workers


def gather_arrays(workers: Workers, arrays: Sequence[Any]) -> list[list[Array]]:
    """Return for each worker its arrays; shapes and types are the same on all."""
    own = [np.asarray(array) for array in arrays]
    return [_unpack(each.tobytes(), own) for each in workers.gather(_as_bytes(_pack(own)))]


def chief_arrays(workers: Workers, arrays: Sequence[Any]) -> list[Array]:
    """Return the first worker's arrays, on every worker."""
    own = [np.asarray(array) for array in arrays]
    packed = _pack(own) if workers.index == 0 else b""
    return _unpack(workers.gather(_as_bytes(packed))[0].tobytes(), own)


def chief_values(workers: Workers, values: tuple[list[Any], ...]) -> tuple[list[Any], ...]:
    """Return the first worker's lists of arrays, on every worker."""
    flat = iter(chief_arrays(workers, [value for each in values for value in each]))
    return tuple([jnp.asarray(next(flat)) for _ in each] for each in values)


def add_up(workers: Workers, before: Sequence[Any], after: Sequence[Any]) -> list[Array]:
    """Return values that all workers began with alike plus what each has added to them."""
    values = gather_arrays(workers, after)
    return [
        (old + sum(each[place] - old for each in values)).astype(old.dtype)
        for place, old in enumerate(np.asarray(each) for each in before)
    ]


def mean_logs(workers: Workers, rows: int, logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the means of logs over all workers' rows; a worker without rows need not know their names."""
    own = json.dumps([rows, {name: np.asarray(value).tolist() for name, value in logs.items()}])
    pairs = [json.loads(each.tobytes()) for each in workers.gather(_as_bytes(own.encode()))]
    pairs = [(count, each) for count, each in pairs if count]
    total = sum(count for count, _ in pairs)
    names = pairs[0][1] if pairs else ()
    return {name: sum(count * np.asarray(each[name]) for count, each in pairs) / total for name in names}


def _pack(arrays: Sequence[Array]) -> bytes:
    return b"".join(array.tobytes() for array in arrays)


def _unpack(packed: bytes, like: Sequence[Array]) -> list[Array]:
    arrays, start = [], 0
    for array in like:
        arrays.append(np.frombuffer(packed, array.dtype, array.size, start).reshape(array.shape))
        start += array.nbytes
    return arrays


def _as_bytes(data: bytes) -> Array:
    return np.frombuffer(data, np.uint8)


def draw_as_chief(workers: Workers) -> None:
    """Make all workers draw what the chief draws from now on: in a seeded script, what one process would draw."""
    restore_random_state(workers.gather(_as_bytes(random_state()))[0].tobytes())


def random_state() -> bytes:
    """Return the state that the next random numbers are drawn from."""
    state = {"python": random.getstate(), "numpy": np.random.get_state(legacy=False)}
    return json.dumps(state, default=lambda array: array.tolist()).encode()


def restore_random_state(packed: bytes) -> None:
    """Draw the next random numbers from a state that `random_state` returned."""
    state = json.loads(packed)
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(state["numpy"])


def seed_random_state(seed: int) -> None:
    """Make all workers that are given the same seed draw alike."""
    np.random.seed(seed % 2**32)
    random.seed(seed)


def peek_random(below: int) -> int:
    """Return the integer below a bound that would be drawn next, without drawing it."""
    ahead = np.random.RandomState()
    ahead.set_state(np.random.get_state(legacy=False))
    return int(ahead.randint(below))


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Let what is drawn in the block not change what is drawn after it."""
    before = random_state()
    try:
        yield
    finally:
        restore_random_state(before)
