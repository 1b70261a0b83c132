"""Keras's `fit` on Stratagem's parameter servers."""

import itertools
from collections.abc import Iterable, Iterator

import stratagem as sg
from benchmarks.parameter_servers.task import Run, Task
from benchmarks.racing.keras_model import build, fit

NEVER = object()


def asynchronous(task: Task) -> Run:
    with sg.ParameterServerStrategy(update=sg.Async()).scope():
        model = build(task.work)
    loss = 0.0
    batches = itertools.cycle(task.work.batches())

    def run(turns: Iterable[object]) -> tuple[int, float]:
        nonlocal loss
        ahead = iter(turns)
        if next(ahead, NEVER) is not NEVER:  # Keras wants one batch at least
            loss = fit(model, itertools.chain([next(batches)], _one_each(ahead)))
        return int(model.optimizer.iterations), loss

    def _one_each(turns: Iterable[object]) -> Iterator[object]:
        return (next(batches) for _ in turns)

    return run
