"""What every strategy is asked to do; run as a script, in as many processes as the strategy wants.

python conformance_job.py 'sg.MirroredStrategy()' RESULTS.npz OPTIMIZER...
"""

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import stratagem as sg

if __name__ == "__main__" and (count := os.environ.get("CONFORMANCE_DEVICES")):
    sg.configure(virtual_devices=int(count))

import jax
import jax.numpy as jnp
import numpy as np
import optax

STEPS = 50
SIZES = [24, 24, 17, 24, 1]
"""Rows of the global batches, in turn: some divide over two, some do not, one leaves a worker without a row."""
EVEN = [24]
OPTIMIZERS = {
    "sgd": optax.sgd(0.05),
    "momentum": optax.sgd(0.02, momentum=0.9),
    "adam": optax.adam(1e-2),
    "adamw": optax.chain(
        optax.clip_by_global_norm(0.5),
        optax.adamw(optax.cosine_decay_schedule(1e-2, STEPS), weight_decay=1e-3),
    ),
    "accumulated": optax.MultiSteps(optax.adam(1e-2), every_k_schedule=2),
}
UNEVEN = "adamw"
"""With this one the rows vary: each number of rows is compiled anew, and optimizers see nothing of it but gradients."""

Params = dict[str, jax.Array]
Batch = tuple[Any, Any]


def initial() -> dict[str, Any]:
    random = np.random.default_rng(1)
    return {
        "w1": random.standard_normal((8, 16)).astype(np.float32) * 0.3,
        "b1": np.zeros(16, np.float32),
        "w2": random.standard_normal((16, 3)).astype(np.float32) * 0.3,
        "b2": np.zeros(3, np.float32),
    }


def batches(steps: int, sizes: Sequence[int] = SIZES) -> list[Batch]:
    random = np.random.default_rng(2)
    made = []
    for step in range(steps):
        rows = sizes[step % len(sizes)]
        images = random.standard_normal((rows, 8)).astype(np.float32)
        made.append((images, np.argmax(images[:, :3] + images[:, 3:6] ** 2, axis=1).astype(np.int32)))
    return made


def logits(params: Params, images: jax.Array) -> jax.Array:
    return jnp.tanh(images @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


def loss_fn(params: Params, batch: Batch) -> tuple[jax.Array, dict[str, jax.Array]]:
    images, labels = batch
    scores = logits(params, images)
    losses = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
    return losses.mean(), {"accuracy": (scores.argmax(axis=1) == labels).mean()}


def half_precision_loss(params: Params, batch: Batch) -> jax.Array:
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    scores = logits(half, batch[0].astype(jnp.bfloat16)).astype(jnp.float32)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(scores, batch[1]))


def noisy_loss(params: Params, batch: Batch, rng: jax.Array) -> jax.Array:
    images = jnp.where(jax.random.bernoulli(rng, 0.5, batch[0].shape), batch[0], 0)
    return loss_fn(params, (images, batch[1]))[0]


def broken_loss(params: Params, batch: Batch) -> jax.Array:
    raise ValueError("a mistake of the user's")


def train(
    strategy: Any, loss: Any, optimizer: Any, steps: int, sizes: Sequence[int], **options: Any
) -> tuple[Any, list[dict[str, float]]]:
    state = strategy.init(initial(), optimizer, **options)
    step = strategy.train_step(loss)
    told = []
    for batch in strategy.distribute(batches(steps, sizes)):
        state, metrics = step(state, batch)
        told.append(metrics)
    return strategy.fetch(state), [{name: float(value) for name, value in each.items()} for each in told]


def main(expression: str, path: str, *optimizers: str) -> None:
    strategy = eval(expression)  # noqa: S307
    found: dict[str, Any] = {"replicas": strategy.num_replicas_in_sync}
    for name in optimizers:
        sizes = SIZES if name == UNEVEN else EVEN
        fetched, told = train(strategy, loss_fn, OPTIMIZERS[name], STEPS, sizes, ema_decay=0.99)
        for leaf in fetched.params:
            found[f"{name}/params/{leaf}"] = fetched.params[leaf]
            found[f"{name}/ema/{leaf}"] = fetched.ema[leaf]
        found[f"{name}/step"] = fetched.step
        for metric in ("loss", "accuracy"):
            found[f"{name}/{metric}"] = [each[metric] for each in told]
    fetched, _ = train(strategy, half_precision_loss, optax.sgd(0.05), 20, SIZES)
    found["half/params"] = fetched.params["w1"]
    for number in range(2):
        fetched, told = train(strategy, noisy_loss, optax.sgd(0.05), 12, EVEN, seed=7)
        found[f"noisy/{number}/params"] = fetched.params["w1"]
        found[f"noisy/{number}/loss"] = [each["loss"] for each in told]
    try:
        train(strategy, broken_loss, optax.sgd(0.05), 1, EVEN)
    except ValueError as error:
        found["error/frames"] = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    rows = np.arange(24, dtype=np.float32).reshape(24, 1)
    (placed,) = strategy.distribute([rows])
    sums = strategy.run(lambda x: {"sum": x.sum(), "rows": x}, placed)
    found["run/count"] = len(strategy.local_results(sums))
    found["reduce/sum"] = strategy.reduce("sum", strategy.run(lambda x: x.sum(), placed))
    found["reduce/mean"] = strategy.reduce("mean", strategy.run(lambda x: x.sum(), placed))
    found["reduce/axis/sum"] = strategy.reduce("sum", strategy.run(lambda x: x, placed), axis=0)
    found["reduce/axis/mean"] = strategy.reduce("mean", strategy.run(lambda x: x, placed), axis=0)
    found["gather"] = strategy.gather(strategy.run(lambda x: x, placed), axis=0)
    if strategy.is_chief:
        arrays: dict[str, Any] = {name: np.asarray(value) for name, value in found.items()}
        np.savez(path, **arrays)
    strategy.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
