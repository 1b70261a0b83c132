"""Stratagem's tables on parameter servers, used as its documentation says, under `stratagem run`."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import optax

import stratagem as sg
from benchmarks.parameter_servers.task import Run
from benchmarks.tables.task import TableTask
from benchmarks.tables.work import DIM, FIRST_ACCUMULATOR, LEARNING_RATE


def bounded(task: TableTask) -> Run:
    """Tables of so many rows."""
    return _loop(task, list(task.work.sizes))


def any_ids(task: TableTask) -> Run:
    """Tables whose ids may be any."""
    return _loop(task, [None] * len(task.work.sizes))


def _loop(task: TableTask, sizes: list[int | None]) -> Run:
    names = task.work.names()
    strategy = sg.ParameterServerStrategy(update=sg.Async())
    state = strategy.init(
        {"vector": task.work.vector()},
        optax.adagrad(LEARNING_RATE, FIRST_ACCUMULATOR),
        tables=[sg.Table(name, DIM, rows) for name, rows in zip(names, sizes, strict=True)],
    )
    step = strategy.train_step(_loss_over(names))
    feed = iter(
        strategy.distribute_from_function(
            lambda context: task.work.batches(context.input_pipeline_id, context.num_input_pipelines)
        )
    )

    metrics: Any = {"loss": 0.0}

    def run(turns: Iterable[object]) -> tuple[int, float]:
        nonlocal state, metrics
        for _, batch in zip(turns, feed, strict=False):
            state, metrics = step(state, batch)
        jax.block_until_ready(state)
        return int(state.step), float(metrics["loss"])

    return run


def _loss_over(names: list[str]) -> Callable[..., jax.Array]:
    def loss_fn(params: Any, batch: Any, rows: Any) -> jax.Array:
        means = [jnp.mean(rows[name](batch[name]), axis=1) for name in names]
        guesses = jnp.concatenate(means, axis=1) @ params["vector"]
        return jnp.mean((guesses - batch["target"]) ** 2)

    return loss_fn
