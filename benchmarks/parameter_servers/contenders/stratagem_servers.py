"""Stratagem's parameter servers, used as its documentation says, under `stratagem run`."""

import itertools
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import optax

import stratagem as sg
from benchmarks.parameter_servers.fashion_mnist import test_set, training_batches
from benchmarks.parameter_servers.task import Run, Task
from benchmarks.racing.jax_model import loss_fn, scores
from benchmarks.racing.work import LEARNING_RATE


def asynchronous(task: Task) -> Run:
    return _loop(sg.ParameterServerStrategy(update=sg.Async()), task)


def overlapping(task: Task) -> Run:
    return _loop(sg.ParameterServerStrategy(update=sg.Async(overlap=True)), task)


def synchronous(task: Task) -> Run:
    return _loop(sg.ParameterServerStrategy(update=sg.Sync()), task)


def fashion(task: Task) -> Run:
    """On real pictures; instead of the loss it tells the accuracy that the servers' parameters have come to."""
    strategy = sg.ParameterServerStrategy(update=sg.Async())
    state = strategy.init(task.work.layers(), optax.sgd(LEARNING_RATE))
    step = strategy.train_step(loss_fn)
    feed = iter(
        strategy.distribute_from_function(lambda context: training_batches(context.input_pipeline_id))
    )
    pictures, labels = test_set()

    def run(turns: Iterable[object]) -> tuple[int, float]:
        nonlocal state
        for _, batch in zip(turns, feed, strict=False):
            state, _ = step(state, batch)
        found = strategy.fetch(state)
        guesses = jnp.argmax(scores(found.params, pictures), axis=1)
        return int(found.step), float(jnp.mean(guesses == labels))

    return run


def one_device(task: Task) -> Run:
    """Without any server: every worker trains a model of its own."""
    return _loop(sg.OneDeviceStrategy(), task)


def _loop(strategy: sg.Strategy, task: Task) -> Run:
    state = strategy.init(task.work.layers(), optax.sgd(LEARNING_RATE))
    step = strategy.train_step(loss_fn)
    feed = iter(strategy.distribute(itertools.cycle(task.work.batches())))

    def run(turns: Iterable[object]) -> tuple[int, float]:
        nonlocal state
        for _, batch in zip(turns, feed, strict=False):
            state, metrics = step(state, batch)
        jax.block_until_ready(state)
        return int(state.step), float(metrics["loss"])

    return run
