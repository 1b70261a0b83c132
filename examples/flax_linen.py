# python examples/flax_linen.py
# stratagem run --workers 2 examples/flax_linen.py
import argparse

import jax
import numpy as np
import optax
from flax import linen

import stratagem as sg

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
arguments = parser.parse_args()


class MLP(linen.Module):
    @linen.compact
    def __call__(self, images: jax.Array, rng: jax.Array | None = None) -> jax.Array:
        hidden = linen.relu(linen.Dense(128)(images))
        hidden = linen.Dropout(0.2)(hidden, deterministic=rng is None, rng=rng)
        return linen.Dense(10)(hidden)


def loss_fn(params: dict[str, object], batch: tuple[jax.Array, jax.Array], rng: jax.Array) -> jax.Array:
    scores = model.apply({"params": params}, batch[0], rng)  # every step and worker drops out its own
    return optax.softmax_cross_entropy_with_integer_labels(scores, batch[1]).mean()


digits = sg.data.load_digits()
strategy = (
    sg.MultiWorkerMirroredStrategy()
)  # or any other; without other workers, all devices of this machine
model = MLP()
params = model.init(jax.random.key(0), digits.train_images[:1])["params"]
state = strategy.init(params, optax.adam(3e-3))  # Linen's parameters are a pytree: they need no front
step = strategy.train_step(loss_fn)
for epoch in range(arguments.epochs):
    order = np.random.default_rng(epoch).permutation(1408)
    batches = ((digits.train_images[rows], digits.train_labels[rows]) for rows in np.split(order, 22))
    for batch in strategy.distribute(batches):
        state, metrics = step(state, batch)
    if strategy.is_chief:
        print(f"epoch {epoch}: loss {metrics['loss']:.4f}")

scores = model.apply({"params": strategy.fetch(state).params}, digits.test_images)
if strategy.is_chief:
    print(f"test accuracy {(scores.argmax(axis=1) == digits.test_labels).mean():.3f}")
strategy.close()
