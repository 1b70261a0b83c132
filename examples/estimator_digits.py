"""An Estimator: a model function, a directory, and the same script on one process or on a cluster.

    python examples/estimator_digits.py --model_dir /tmp/digits
    stratagem run --workers 2 --evaluator examples/estimator_digits.py --model_dir /tmp/digits --strategy multi-worker
    stratagem run --ps 1 --workers 2 --evaluator examples/estimator_digits.py --model_dir /tmp/digits --strategy ps
Started again with more --steps it goes on from its last checkpoint.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import stratagem as sg

STRATEGIES = {
    "one-device": None,
    "mirrored": sg.MirroredStrategy,
    "multi-worker": sg.MultiWorkerMirroredStrategy,
    "ps": sg.ParameterServerStrategy,
    "tpu": sg.TPUStrategy,
}
parser = argparse.ArgumentParser()
parser.add_argument("--model_dir", required=True, help="for checkpoints and summaries")
parser.add_argument("--steps", type=int, default=400, help="of all workers together")
parser.add_argument("--strategy", choices=STRATEGIES, default="one-device")
options, _ = parser.parse_known_args()  # --job_name and its like are read by the strategy
digits = sg.data.load_digits()


def model_fn(features: Any, mode: str, params: dict[str, Any]) -> sg.EstimatorSpec:
    def init(rng: jax.Array, features: Any) -> dict[str, Any]:
        first = 0.1 * jax.random.normal(rng, (features.shape[1], params["hidden"]))
        return {"first": first, "second": jnp.zeros((params["hidden"], 10)), "bias": jnp.zeros(10)}

    def scores(weights: Any, images: jax.Array) -> jax.Array:
        return jax.nn.relu(images @ weights["first"]) @ weights["second"] + weights["bias"]

    def loss(weights: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(scores(weights, images), labels).mean()

    def accuracy(weights: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        return jnp.mean(scores(weights, images).argmax(axis=1) == labels)

    def predictions(weights: Any, images: jax.Array) -> dict[str, jax.Array]:
        return {"digit": scores(weights, images).argmax(axis=1)}

    optimizer = optax.adam(params["rate"])
    return sg.EstimatorSpec(init, loss, predictions, {"accuracy": accuracy}, optimizer)


def train_input(global_step: int) -> Iterator[Any]:
    random = np.random.default_rng(global_step)  # not the batches of the training that this one goes on from
    while True:
        rows = random.integers(len(digits.train_labels), size=120)
        yield digits.train_images[rows], digits.train_labels[rows]


def test_input() -> list[Any]:
    return [(digits.test_images, digits.test_labels)]


# On the evaluator, which runs this script too, a strategy of several processes is one of its own devices.
strategy = STRATEGIES[options.strategy]
config = sg.RunConfig(train_distribute=strategy, eval_distribute=strategy, save_checkpoints_steps=100)
estimator = sg.Estimator(model_fn, options.model_dir, config, params={"hidden": 64, "rate": 3e-3})
results = sg.train_and_evaluate(
    estimator,
    sg.TrainSpec(train_input, max_steps=options.steps),
    sg.EvalSpec(test_input, start_delay_secs=0, throttle_secs=0),
)
if results is not None:  # the evaluator, or the only process
    print(f"step {results['global_step']:.0f}, accuracy {results['accuracy']:.3f}")
    first = estimator.predict(lambda: [digits.test_images[:5]])
    print("the first five:", [int(row["digit"]) for row in first])
