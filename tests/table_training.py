"""A small model with an embedding, which is trained row by row or as one dense variable: both become the same."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import stratagem as sg
from stratagem.strategies import Strategy

ROWS = 40
DIM = 3
STEPS = 200
OPTIMIZERS = {"sgd": optax.sgd(0.05), "adagrad": optax.adagrad(0.1)}
"""Those with which both are the same."""


class Trained(NamedTuple):
    """What came of it."""

    values: Any
    bias: Any
    losses: Any


def batches() -> list[dict[str, Any]]:
    """Batches in which ids are repeated, some of them rarely seen; the last one divides over no two devices."""
    random = np.random.default_rng(3)
    truth = random.standard_normal((ROWS, DIM)).astype(np.float32)
    made = []
    for size in [8] * (STEPS - 1) + [5]:
        ids = random.integers(0, ROWS, (size, 2)) ** 2 // ROWS
        made.append({"ids": ids, "target": truth[ids[:, 0]] * 2 + truth[ids[:, 1]]})
    return made


def loss_of(params: Any, rows: Any, batch: Any) -> jax.Array:
    guess = rows[:, 0] * 2 + rows[:, 1] + params["bias"]
    return jnp.mean(jnp.sum((guess - batch["target"]) ** 2, axis=-1))


def trained_by_row(strategy: Strategy, optimizer: Any) -> Trained:
    table = sg.Table("items", dim=DIM, rows=ROWS)
    state = strategy.init({"bias": np.zeros(DIM, np.float32)}, optimizer, tables=[table])
    step = strategy.train_step(
        lambda params, batch, rows: loss_of(params, rows["items"](batch["ids"]), batch)
    )
    losses = []
    for batch in strategy.distribute(batches()):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    values = strategy.table(state, "items").lookup(np.arange(ROWS))
    return Trained(values, strategy.fetch(state).params["bias"], np.array(losses))


def trained_densely(optimizer: Any) -> Trained:
    """The same on one device, with a variable whose gradients are those of all rows."""
    strategy = sg.OneDeviceStrategy()
    untrained = strategy.init({}, optimizer, tables=[sg.Table("items", dim=DIM, rows=ROWS)])
    items = strategy.table(untrained, "items").lookup(np.arange(ROWS))
    state = strategy.init({"bias": np.zeros(DIM, np.float32), "items": items}, optimizer)
    step = strategy.train_step(lambda params, batch: loss_of(params, params["items"][batch["ids"]], batch))
    losses = []
    for batch in batches():
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    params = strategy.fetch(state).params
    return Trained(params["items"], params["bias"], np.array(losses))


def check_same(found: Trained, expected: Trained) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
