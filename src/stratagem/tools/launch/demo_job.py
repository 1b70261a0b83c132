"""The demo's first script: one file, run by one worker and, unchanged, by every worker of a cluster."""

import argparse
import os
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import stratagem as sg

STEPS, GLOBAL_BATCH, REPORT_EVERY = 90, 480, 30
HIDDEN = 1024

Params = dict[str, jax.Array]
Batch = tuple[np.ndarray, np.ndarray]


def init(key: jax.Array, hidden: int = HIDDEN) -> Params:
    """A network of two hidden layers."""
    first, second, third = jax.random.split(key, 3)
    return {
        "w1": jax.random.normal(first, (64, hidden)) * 64**-0.5,
        "b1": jnp.zeros(hidden),
        "w2": jax.random.normal(second, (hidden, hidden)) * hidden**-0.5,
        "b2": jnp.zeros(hidden),
        "w3": jax.random.normal(third, (hidden, 10)) * hidden**-0.5,
        "b3": jnp.zeros(10),
    }


def scores(params: Params, images: jax.Array | np.ndarray) -> jax.Array:
    """The scores of the ten digits."""
    values = jax.nn.relu(images @ params["w1"] + params["b1"])
    values = jax.nn.relu(values @ params["w2"] + params["b2"])
    return values @ params["w3"] + params["b3"]


def loss_fn(params: Params, batch: Batch) -> jax.Array:
    """Mean cross-entropy over the rows it is given."""
    images, labels = batch
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(scores(params, images), labels))


def batches(digits: sg.data.Digits, size: int) -> Iterator[Batch]:
    """Global batches without end: the same on every worker, since all draw from one seed."""
    random = np.random.default_rng(0)
    while True:
        rows = random.integers(len(digits.train_labels), size=size)
        yield digits.train_images[rows], digits.train_labels[rows]


def say_accuracy(params: Any, digits: sg.data.Digits) -> None:
    """Print how many of the test digits are recognised."""
    found = scores(params, digits.test_images).argmax(axis=1) == digits.test_labels
    print(f"accuracy on {len(digits.test_labels)} test digits: {100 * found.mean():.1f} %")  # noqa: T201


def main() -> None:
    """Train, and let the chief tell how it goes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cores", type=int, help="use so many cores at most")
    cores = parser.parse_args().cores
    if cores is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])

    strategy = sg.MultiWorkerMirroredStrategy()
    digits = sg.data.load_digits()
    state = strategy.init(init(jax.random.key(0)), optax.adam(1e-3))
    train_step = strategy.train_step(loss_fn)
    for step, batch in enumerate(strategy.distribute(batches(digits, GLOBAL_BATCH)), start=1):
        state, metrics = train_step(state, batch)
        if step == 1:
            jax.block_until_ready(state)
            began = time.perf_counter()  # what comes before is compilation
        elif step % REPORT_EVERY == 0 and strategy.is_chief:
            loss, speed = float(metrics["loss"]), (step - 1) / (time.perf_counter() - began)
            print(f"step {step}: loss {loss:.4f}, {speed:.0f} steps/s")  # noqa: T201
        if step == STEPS:
            break
    if strategy.is_chief:
        say_accuracy(strategy.fetch(state).params, digits)
    strategy.close()


if __name__ == "__main__":
    main()
