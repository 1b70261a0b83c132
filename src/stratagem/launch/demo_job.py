"""The demo's training script: one file, run on one device and, unchanged, by every worker of a cluster."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from stratagem.cluster import resolve_cluster
from stratagem.data.digits import Digits, load_digits

STEPS, GLOBAL_BATCH, REPORT_EVERY = 600, 120, 200

Params = dict[str, jax.Array]
Batch = tuple[jax.Array, jax.Array]

optimizer = optax.adam(1e-3)


def init(key: jax.Array) -> Params:
    """A network of one hidden layer."""
    first, second = jax.random.split(key)
    return {
        "w1": jax.random.normal(first, (64, 128)) * 64**-0.5,
        "b1": jnp.zeros(128),
        "w2": jax.random.normal(second, (128, 10)) * 128**-0.5,
        "b2": jnp.zeros(10),
    }


def logits(params: Params, images: jax.Array) -> jax.Array:
    """The scores of the ten digits."""
    hidden = jax.nn.relu(images @ params["w1"] + params["b1"])
    return hidden @ params["w2"] + params["b2"]


def loss_fn(params: Params, batch: Batch) -> jax.Array:
    """Mean cross-entropy over the batch, which is spread over all devices of all workers."""
    images, labels = batch
    loss: jax.Array = optax.softmax_cross_entropy_with_integer_labels(logits(params, images), labels).mean()
    return loss


@jax.jit
def train_step(
    params: Params, opt_state: optax.OptState, batch: Batch
) -> tuple[Params, optax.OptState, jax.Array]:
    """One synchronous update: XLA sums the gradients of all workers."""
    loss, gradients = jax.value_and_grad(loss_fn)(params, batch)
    updates, opt_state = optimizer.update(gradients, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def spread(digits: Digits, rows: NDArray[np.int64], sharding: NamedSharding) -> Batch:
    """Put this process's share of the rows on its devices; together the shares are the batch."""
    share = np.array_split(rows, jax.process_count())[jax.process_index()]
    return (
        jax.make_array_from_process_local_data(sharding, digits.train_images[share]),
        jax.make_array_from_process_local_data(sharding, digits.train_labels[share]),
    )


def main() -> None:
    """Train, and let the chief tell how it goes."""
    config = resolve_cluster()
    if config is not None and config.cluster.num_tasks("worker") > 1:
        addresses = config.cluster.job_tasks("worker")
        jax.distributed.initialize(addresses[0], len(addresses), config.task_index)
    is_chief = config is None or config.is_chief
    mesh = Mesh(np.array(jax.devices()), ("data",))
    digits = load_digits()

    params = jax.device_put(init(jax.random.key(0)), NamedSharding(mesh, PartitionSpec()))
    opt_state = optimizer.init(params)
    random = np.random.default_rng(0)  # the same on every worker, so all agree on every batch
    for step in range(1, STEPS + 1):
        rows = random.integers(len(digits.train_labels), size=GLOBAL_BATCH)
        batch = spread(digits, rows, NamedSharding(mesh, PartitionSpec("data")))
        params, opt_state, loss = train_step(params, opt_state, batch)
        if step == 1:
            began = time.perf_counter()  # what comes before is compilation
        elif step % REPORT_EVERY == 0 and is_chief:
            speed = (step - 1) / (time.perf_counter() - began)
            print(f"step {step}: loss {loss.item():.4f}, {speed:.0f} steps/s")  # noqa: T201

    local = jax.tree.map(lambda array: array.addressable_data(0), params)
    correct = jnp.argmax(logits(local, jnp.asarray(digits.test_images)), axis=1) == digits.test_labels
    if is_chief:
        print(f"accuracy on {len(digits.test_labels)} test digits: {100 * correct.mean().item():.1f} %")  # noqa: T201


if __name__ == "__main__":
    main()
