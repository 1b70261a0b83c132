"""The demo's script: run by one worker and, unchanged, by every worker of a cluster.

With `--recovery` it trains on parameter servers, and kills a server and a worker.
"""

import argparse
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import stratagem as sg
from stratagem import environment

STEPS, GLOBAL_BATCH, HIDDEN, REPORT_EVERY = 90, 480, 1024, 30
RECOVERY_STEPS, RECOVERY_BATCH, RECOVERY_HIDDEN, REPORT_SECONDS = 2000, 120, 128, 0.5
WORKER_KILLED_AT, SERVER_KILLED_AT = 500, 1000
SERVER = "/job:ps/task:1"

Params = dict[str, jax.Array]
Batch = tuple[np.ndarray, np.ndarray]


def init(key: jax.Array, hidden: int) -> Params:
    """Return the parameters of a network with two hidden layers."""
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
    """Return the scores of the ten digits."""
    values = jax.nn.relu(images @ params["w1"] + params["b1"])
    values = jax.nn.relu(values @ params["w2"] + params["b2"])
    return values @ params["w3"] + params["b3"]


def loss_fn(params: Params, batch: Batch) -> jax.Array:
    """Return the mean cross-entropy over the rows of a batch."""
    images, labels = batch
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(scores(params, images), labels))


def batches(digits: sg.data.Digits, size: int) -> Iterator[Batch]:
    """Yield global batches without end, the same on every worker, since all draw from one seed."""
    random = np.random.default_rng(0)
    while True:
        rows = random.integers(len(digits.train_labels), size=size)
        yield digits.train_images[rows], digits.train_labels[rows]


def print_accuracy(params: Any, digits: sg.data.Digits) -> None:
    """Print the share of test digits that are recognised."""
    correct = scores(params, digits.test_images).argmax(axis=1) == digits.test_labels
    print(f"accuracy on {len(digits.test_labels)} test digits: {100 * correct.mean():.1f} %")  # noqa: T201


def train_in_step() -> None:
    """Train with all workers in step; the chief reports."""
    strategy = sg.MultiWorkerMirroredStrategy()
    digits = sg.data.load_digits()
    state = strategy.init(init(jax.random.key(0), HIDDEN), optax.adam(1e-3))
    train_step = strategy.train_step(loss_fn)
    for step, batch in enumerate(strategy.distribute(batches(digits, GLOBAL_BATCH)), start=1):
        state, metrics = train_step(state, batch)
        if step == 1:
            jax.block_until_ready(state)
            start = time.perf_counter()  # after compilation
        elif step % REPORT_EVERY == 0 and strategy.is_chief:
            loss, speed = float(metrics["loss"]), (step - 1) / (time.perf_counter() - start)
            print(f"step {step}: loss {loss:.4f}, {speed:.0f} steps/s")  # noqa: T201
        if step == STEPS:
            break
    if strategy.is_chief:
        print_accuracy(strategy.fetch(state).params, digits)
    strategy.close()


def train_through_losses() -> None:
    """Train on parameter servers, report, and kill a worker and a server."""
    strategy = sg.ParameterServerStrategy(snapshot_secs=1)
    digits = sg.data.load_digits()
    state = strategy.init(init(jax.random.key(0), RECOVERY_HIDDEN), optax.adam(2e-4))
    train_step = strategy.train_step(loss_fn)
    is_first_start = environment.generation() == 0
    kills_server = strategy.is_chief
    reported = 0.0
    for batch in strategy.distribute(batches(digits, RECOVERY_BATCH)):
        state, metrics = train_step(state, batch)
        step, now = metrics["global_step"], time.monotonic()
        if strategy.is_chief and now - reported > REPORT_SECONDS:
            reported = now
            lost = "" if kills_server else f", {metrics['lost_updates']} updates lost"
            print(f"step {step}: loss {float(metrics['loss']):.4f}{lost}")  # noqa: T201
        if not strategy.is_chief and is_first_start and step > WORKER_KILLED_AT:
            kill(os.getpid(), "this worker")
        if kills_server and step > SERVER_KILLED_AT:
            kills_server = False
            kill(strategy.status()[SERVER]["process"], "ps:1, which has half of the parameters")
        if step >= RECOVERY_STEPS:
            break
    if strategy.is_chief:
        print_accuracy(strategy.fetch(state).params, digits)
    strategy.close()


def kill(process: int, name: str) -> None:
    """Kill a process, and print the command that would do the same."""
    print(f"kill -9 {process}  # {name}")  # noqa: T201
    os.kill(process, signal.SIGKILL)


def main() -> None:
    """Train as the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cores", type=int, help="use at most this number of cores")
    parser.add_argument(
        "--recovery", action="store_true", help="train through the loss of a worker and a server"
    )
    options = parser.parse_args()
    if options.cores is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    if options.recovery:
        train_through_losses()
    else:
        train_in_step()


if __name__ == "__main__":
    main()
