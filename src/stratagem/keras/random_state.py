"""The random numbers that Keras shuffles with and draws initial weights from: NumPy's and Python's, of the whole process."""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from stratagem.engines.workers import Workers


def draw_as_chief(workers: Workers) -> None:
    """Have all workers draw from now on what the chief draws: in a script that is seeded, what one process draws."""
    restore(workers.gather(np.frombuffer(packed(), np.uint8))[0].tobytes())


def packed() -> bytes:
    """What the next numbers are drawn from."""
    state = {"python": random.getstate(), "numpy": np.random.get_state(legacy=False)}
    return json.dumps(state, default=lambda array: array.tolist()).encode()


def restore(state: bytes) -> None:
    """Draw the next numbers from what was packed."""
    told = json.loads(state)
    version, words, following = told["python"]
    random.setstate((version, tuple(words), following))
    np.random.set_state(told["numpy"])


def seed(number: int) -> None:
    """Have all workers draw alike that are given the same number."""
    np.random.seed(number % 2**32)
    random.seed(number)


def peek(below: int) -> int:
    """The number below another that would be drawn next; it is not drawn."""
    ahead = np.random.RandomState()
    ahead.set_state(np.random.get_state(legacy=False))
    return int(ahead.randint(below))


@contextmanager
def undisturbed() -> Iterator[None]:
    """A block after which the numbers are drawn that would have been drawn without it."""
    before = packed()
    try:
        yield
    finally:
        restore(before)
