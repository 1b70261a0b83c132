"""Datasets that workers make for themselves."""

from collections.abc import Iterator
from os import getpid
from typing import Any

import numpy as np

from stratagem.strategies import InputContext


def counted() -> Iterator[Any]:
    """1, 2, 3 and so on, for ever, in the same memory."""
    memory = np.zeros(4)
    while True:
        memory += 1
        yield {"x": memory, "process": np.int32(getpid())}


def uneven() -> Iterator[Any]:
    """Two batches of three rows, then one of two, and no more."""
    yield from (np.ones(rows, np.float32) for rows in (3, 3, 2))


def places(context: InputContext) -> Iterator[Any]:
    """Which worker of how many this is."""
    while True:
        yield np.array([context.input_pipeline_id, context.num_input_pipelines])


def broken() -> Iterator[Any]:
    """An error instead of a batch."""
    raise RuntimeError("the file of digits is damaged")
    yield
