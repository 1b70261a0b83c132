"""The demo's training script: one file, run on one device and, unchanged, by every worker of a cluster."""

import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax

import stratagem as sg

STEPS, GLOBAL_BATCH, REPORT_EVERY = 600, 120, 200

Params = dict[str, jax.Array]
Batch = tuple[np.ndarray, np.ndarray]


def init(key: jax.Array) -> Params:
    """A network of one hidden layer."""
    first, second = jax.random.split(key)
    return {
        "w1": jax.random.normal(first, (64, 128)) * 64**-0.5,
        "b1": jnp.zeros(128),
        "w2": jax.random.normal(second, (128, 10)) * 128**-0.5,
        "b2": jnp.zeros(10),
    }


def logits(params: Params, images: jax.Array | np.ndarray) -> jax.Array:
    """The scores of the ten digits."""
    hidden = jax.nn.relu(images @ params["w1"] + params["b1"])
    return hidden @ params["w2"] + params["b2"]


def loss_fn(params: Params, batch: Batch) -> jax.Array:
    """Mean cross-entropy over the rows it is given."""
    images, labels = batch
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits(params, images), labels))


def batches(digits: sg.data.Digits) -> Iterator[Batch]:
    """Global batches: the same on every worker, since all draw from one seed."""
    random = np.random.default_rng(0)
    for _ in range(STEPS):
        rows = random.integers(len(digits.train_labels), size=GLOBAL_BATCH)
        yield digits.train_images[rows], digits.train_labels[rows]


def main() -> None:
    """Train, and let the chief tell how it goes."""
    strategy = sg.MultiWorkerMirroredStrategy()
    digits = sg.data.load_digits()
    state = strategy.init(init(jax.random.key(0)), optax.adam(1e-3))
    train_step = strategy.train_step(loss_fn)
    for step, batch in enumerate(strategy.distribute(batches(digits)), start=1):
        state, metrics = train_step(state, batch)
        if step == 1:
            began = time.perf_counter()  # what comes before is compilation
        elif step % REPORT_EVERY == 0 and strategy.is_chief:
            loss, speed = float(metrics["loss"]), (step - 1) / (time.perf_counter() - began)
            print(f"step {step}: loss {loss:.4f}, {speed:.0f} steps/s")  # noqa: T201

    if strategy.is_chief:
        correct = (
            logits(strategy.fetch(state).params, digits.test_images).argmax(axis=1) == digits.test_labels
        )
        print(f"accuracy on {len(digits.test_labels)} test digits: {100 * correct.mean():.1f} %")  # noqa: T201
    strategy.close()


if __name__ == "__main__":
    main()
