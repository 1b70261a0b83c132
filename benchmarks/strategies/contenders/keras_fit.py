"""Keras's `fit`, by itself and under a strategy."""

import itertools
import os

os.environ["KERAS_BACKEND"] = "jax"

import stratagem as sg
from benchmarks.racing.keras_model import build, fit
from benchmarks.strategies.task import Run, Task


def plain(task: Task) -> Run:
    return _loop(build(task.work), task)


def one_device(task: Task) -> Run:
    with sg.OneDeviceStrategy().scope():
        return _loop(build(task.work), task)


def _loop(model: object, task: Task) -> Run:
    batches = itertools.cycle(task.work.batches())
    return lambda steps: fit(model, itertools.islice(batches, steps))
