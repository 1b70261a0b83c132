"""One client has all workers train: each on batches that it makes for itself, as fast as it can.

stratagem run --ps 1 --workers 2 --single-client --allow-import coordinator examples/coordinator.py
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

import stratagem as sg


def batches(context: sg.InputContext) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Runs on the workers, which import this file: each shuffles the digits in its own way, for ever."""
    digits, random = sg.data.load_digits(), np.random.default_rng(context.input_pipeline_id)
    while True:
        rows = random.integers(len(digits.train_images), size=64)
        yield digits.train_images[rows], digits.train_labels[rows]


def step(w: jax.Array, b: jax.Array, batch: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, ...]:
    """Traced here, run there: what to add to the variables, and the loss."""
    images, labels = batch

    def loss_of(w: jax.Array, b: jax.Array) -> jax.Array:
        scores = jax.nn.log_softmax(images @ w + b)
        return -jnp.take_along_axis(scores, labels[:, None], axis=1).mean()

    loss, (dw, db) = jax.value_and_grad(loss_of, argnums=(0, 1))(w, b)
    return -0.2 * dw, -0.2 * db, loss


def main() -> None:
    digits = sg.data.load_digits()
    with sg.Session(f"sg://{sg.resolve_cluster().cluster.task_address('ps', 0)}") as session:
        w = session.variable(np.zeros((64, 10), np.float32), name="w", device="/job:ps/task:0")
        b = session.variable(np.zeros(10, np.float32), name="b", device="/job:ps/task:0")
        with sg.ClusterCoordinator(session) as coordinator:
            data = iter(coordinator.create_per_worker_dataset("coordinator:batches"))
            losses = [coordinator.schedule(step, (w, b, data), add_to=[w, b]) for _ in range(600)]
            coordinator.join()
            print(f"loss {losses[0].fetch():.3f}, then {losses[-1].fetch():.3f}")
        found = (digits.test_images @ w.read() + b.read()).argmax(axis=1)
        print(f"accuracy on {len(found)} test digits: {(found == digits.test_labels).mean():.1%}")


if __name__ == "__main__":
    main()
