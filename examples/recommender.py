"""A two-tower recommender over millions of users and items: tables whose rows exist from when they are first trained.

    python examples/recommender.py [--strategy mirrored]
    stratagem run --ps 2 --workers 2 examples/recommender.py --strategy parameter-server

Few users click often, most of them seldom, and so it is with items (Zipf's law). Whether a user likes an item is given by
two hidden angles; the model finds that out from the clicks. No table of ten million rows is ever made: memory and network
follow the ids of the batches.
"""

import argparse
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import optax

import stratagem as sg

STRATEGIES = {
    "one-device": sg.OneDeviceStrategy,
    "mirrored": sg.MirroredStrategy,
    "central-storage": sg.CentralStorageStrategy,
    "parameter-server": sg.ParameterServerStrategy,  # update=sg.Async(): workers at their own pace
}
parser = argparse.ArgumentParser()
parser.add_argument("--strategy", choices=STRATEGIES, default="one-device")
parser.add_argument("--users", type=int, default=10_000_000)
parser.add_argument("--items", type=int, default=1_000_000)
parser.add_argument("--dim", type=int, default=16, help="numbers in a row")
parser.add_argument("--steps", type=int, default=2000, help="of all workers together")
parser.add_argument("--batch_size", type=int, default=1024, help="of each step")
options = parser.parse_args()
Batch = dict[str, Any]


def clicks(steps: int, seed: int) -> Iterator[Batch]:
    """Batches of who was shown what, and who clicked."""
    random = np.random.default_rng(seed)
    for _ in range(steps):
        # Zipf's law: id k is drawn with a chance that is proportional to 1 / (k + 1).
        draws = (most ** random.random(options.batch_size) for most in (options.users, options.items))
        user, item = (draw.astype(np.int64) - 1 for draw in draws)
        likes = np.cos(2.4 * user - 1.7 * item) > 0
        yield {"user": user, "item": item, "clicked": likes.astype(np.float32)}


def scores(params: Any, users: Any, items: Any) -> Any:
    """Each tower makes a vector of a row; these are compared."""
    towers = (jax.nn.tanh(rows @ params[name]) for name, rows in (("user", users), ("item", items)))
    return params["scale"] * (next(towers) * next(towers)).sum(axis=-1) + params["bias"]


def loss_fn(params: Any, batch: Batch, rows: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
    found = scores(params, rows["users"](batch["user"]), rows["items"](batch["item"]))
    losses = optax.sigmoid_binary_cross_entropy(found, batch["clicked"])
    return losses.mean(), {"accuracy": ((found > 0) == (batch["clicked"] > 0.5)).mean()}


began = time.monotonic()
strategy = STRATEGIES[options.strategy]()
square = np.eye(options.dim, dtype=np.float32)
params = {"user": square, "item": square, "scale": np.float32(1), "bias": np.float32(0)}
first = jax.nn.initializers.normal(0.3)
# Gradients are means over the batch, so those of one row are small.
adagrad = optax.adagrad(0.1, initial_accumulator_value=1e-9)
tables = [
    sg.Table("users", options.dim, optimizer=adagrad, initializer=first),  # any 64-bit id
    sg.Table("items", options.dim, options.items, adagrad, first),  # from 0 to --items - 1
]
state = strategy.init(params, optax.adam(1e-3), tables=tables)
step = strategy.train_step(loss_fn)
every = max(1, options.steps // 10)
for number, batch in enumerate(strategy.distribute(clicks(options.steps, seed=0)), 1):
    state, metrics = step(state, batch)
    if number % every == 0 and strategy.is_chief:
        print(f"batch {number}: loss {metrics['loss']:.3f}, accuracy {metrics['accuracy']:.3f}")

users, items = strategy.table(state, "users"), strategy.table(state, "items")
(batch,) = clicks(1, seed=1)
params = strategy.fetch(state).params
found = scores(params, users.lookup(batch["user"]), items.lookup(batch["item"])) > 0
seconds = time.monotonic() - began
print(f"accuracy on clicks never seen: {(found == (batch['clicked'] > 0.5)).mean():.3f}")
print(f"{len(users)} of {options.users} users and {len(items)} of {options.items} items, {seconds:.1f} s")
strategy.close()
