# python examples/equinox_mlp.py
# stratagem run --workers 2 examples/equinox_mlp.py
import argparse

import equinox
import jax
import numpy as np
import optax

import stratagem as sg

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
arguments = parser.parse_args()

digits = sg.data.load_digits()
strategy = (
    sg.MultiWorkerMirroredStrategy()
)  # or any other; without other workers, all devices of this machine
model = equinox.nn.MLP(in_size=64, out_size=10, width_size=128, depth=1, key=jax.random.key(0))
# An Equinox model is a pytree of arrays and of what is not trained, such as its activation function.
params, rest = equinox.partition(model, equinox.is_inexact_array)


def loss_fn(params: equinox.nn.MLP, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    scores = jax.vmap(equinox.combine(params, rest))(batch[0])
    return optax.softmax_cross_entropy_with_integer_labels(scores, batch[1]).mean()


state = strategy.init(params, optax.adam(3e-3))
step = strategy.train_step(loss_fn)
for epoch in range(arguments.epochs):
    order = np.random.default_rng(epoch).permutation(1408)
    batches = ((digits.train_images[rows], digits.train_labels[rows]) for rows in np.split(order, 22))
    for batch in strategy.distribute(batches):
        state, metrics = step(state, batch)
    if strategy.is_chief:
        print(f"epoch {epoch}: loss {metrics['loss']:.4f}")

trained = equinox.combine(strategy.fetch(state).params, rest)
if strategy.is_chief:
    scores = jax.vmap(trained)(digits.test_images)
    print(f"test accuracy {(scores.argmax(axis=1) == digits.test_labels).mean():.3f}")
strategy.close()
