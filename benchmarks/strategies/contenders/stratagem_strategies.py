"""Stratagem's own strategies, used as its documentation says."""

import itertools
from typing import Any

import jax
import optax

import stratagem as sg
from benchmarks.racing.conversation import Absent
from benchmarks.racing.jax_model import loss_fn
from benchmarks.racing.work import LEARNING_RATE
from benchmarks.strategies.task import Run, Task


def one_device(task: Task) -> Run:
    return _loop(_class("OneDeviceStrategy")(), task)


def mirrored(task: Task) -> Run:
    return _loop(_class("MirroredStrategy")(), task)


def central_storage(task: Task) -> Run:
    return _loop(_class("CentralStorageStrategy")(), task)


def multi_worker(task: Task) -> Run:
    """The cluster comes from TF_CONFIG."""
    return _loop(_class("MultiWorkerMirroredStrategy")(), task)


def multi_worker_over_xla(task: Task) -> Run:
    """The same, summed by XLA though there is one host: as on accelerators, or between hosts."""
    return _loop(_class("MultiWorkerMirroredStrategy")(communication="ring"), task)


def _class(name: str) -> Any:
    try:
        return getattr(sg, name)
    except AttributeError as error:
        raise Absent(f"this Stratagem has no {name}") from error


def _loop(strategy: Any, task: Task) -> Run:
    if strategy.num_replicas_in_sync != task.work.replicas:
        raise ValueError(f"{strategy.num_replicas_in_sync} replicas instead of {task.work.replicas}")
    state = strategy.init(task.work.layers(), optax.sgd(LEARNING_RATE))
    step = strategy.train_step(loss_fn)
    feed = iter(strategy.distribute(itertools.cycle(task.work.batches())))

    def run(steps: int) -> float:
        nonlocal state
        for batch in itertools.islice(feed, steps):
            state, metrics = step(state, batch)
        jax.block_until_ready(state)
        return float(metrics["loss"])

    return run
