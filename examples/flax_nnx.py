# python examples/flax_nnx.py --strategy mirrored
# stratagem run --workers 2 examples/flax_nnx.py --strategy multi-worker
# stratagem run --ps 1 --workers 2 examples/flax_nnx.py --strategy parameter-server
import argparse
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

import stratagem as sg

STRATEGIES = {
    "one-device": sg.OneDeviceStrategy,
    "mirrored": sg.MirroredStrategy,
    "central-storage": sg.CentralStorageStrategy,
    "multi-worker": sg.MultiWorkerMirroredStrategy,  # without other workers, all devices of this machine
    "parameter-server": lambda: sg.ParameterServerStrategy(update=sg.Sync()),  # or sg.Async()
}
parser = argparse.ArgumentParser()
parser.add_argument("--strategy", choices=STRATEGIES, default="multi-worker")
parser.add_argument("--epochs", type=int, default=5)
arguments = parser.parse_args()


class CNN(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(1, 16, (3, 3), use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(16, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.dense = nnx.Linear(4 * 4 * 16, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        hidden = nnx.max_pool(nnx.relu(self.norm(self.conv(images))), (2, 2), (2, 2))
        return self.dense(self.dropout(hidden.reshape(len(images), -1)))


def loss_fn(model: CNN, batch: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, dict[str, Any]]:
    scores = model(batch[0])
    losses = optax.softmax_cross_entropy_with_integer_labels(scores, batch[1])
    return losses.mean(), {"accuracy": (scores.argmax(axis=1) == batch[1]).mean()}


digits = sg.data.load_digits()
images = digits.train_images.reshape(-1, 8, 8, 1)
strategy = STRATEGIES[arguments.strategy]()
model = CNN(nnx.Rngs(0))
trainable = sg.flax.Trainable(model, loss_fn)
state = strategy.init(trainable, optax.adam(3e-3))
step = strategy.train_step(trainable)
for epoch in range(arguments.epochs):
    order = np.random.default_rng(epoch).permutation(len(images))[:1408]
    for batch in strategy.distribute(
        (images[rows], digits.train_labels[rows]) for rows in np.split(order, 22)
    ):
        state, metrics = step(state, batch)
    if strategy.is_chief:
        print(f"epoch {epoch}: loss {metrics['loss']:.4f}, accuracy {metrics['accuracy']:.3f}")

strategy.fetch(state)  # now the model itself has what was trained
if strategy.is_chief:
    model.eval()
    scores = nnx.jit(CNN.__call__)(model, digits.test_images.reshape(-1, 8, 8, 1))
    print(f"test accuracy {(scores.argmax(axis=1) == digits.test_labels).mean():.3f}")
strategy.close()
