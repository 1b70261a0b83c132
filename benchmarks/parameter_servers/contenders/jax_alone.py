"""Bare JAX, without any server: every worker trains a model of its own, with a loop written by hand."""

import itertools
from collections.abc import Iterable

import jax
import optax

from benchmarks.parameter_servers.task import Run, Task
from benchmarks.racing.jax_model import step_by_hand
from benchmarks.racing.work import LEARNING_RATE


def alone(task: Task) -> Run:
    optimizer = optax.sgd(LEARNING_RATE)
    params = jax.device_put(task.work.layers())
    opt_state = optimizer.init(params)
    step = step_by_hand(optimizer)
    feed = itertools.cycle(task.work.batches())
    done = 0

    def run(turns: Iterable[object]) -> tuple[int, float]:
        nonlocal params, opt_state, done
        for _, batch in zip(turns, feed, strict=False):
            params, opt_state, loss = step(params, opt_state, jax.device_put(batch))
            done += 1
        jax.block_until_ready(params)
        return done, float(loss)

    return run
