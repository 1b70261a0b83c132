"""A worker that fits a line to points with parameter servers, and tells how that went; run as a script.

python regression_job.py RULE UPDATES
"""

import sys
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

import stratagem as sg
from drills.task_messages import tell

Batch = tuple[Any, Any]


def batches(count: int) -> list[Batch]:
    """The same for all, in the same order."""
    random = np.random.default_rng(7)
    slope = np.asarray([1, -2, 3, 0.5], np.float32)
    points = [random.standard_normal((12, 4)).astype(np.float32) for _ in range(count)]
    return [(each, each @ slope + 1) for each in points]


def loss_fn(params: Any, batch: Batch) -> Any:
    points, wanted = batch
    return jnp.mean((points @ params["slope"] + params["offset"] - wanted) ** 2)


def train(strategy: Any, updates: int) -> Any:
    state = strategy.init({"slope": np.zeros(4, np.float32), "offset": np.float32(0)}, optax.sgd(0.05))
    step = strategy.train_step(loss_fn)
    for batch in strategy.distribute(batches(updates)):
        state, _ = step(state, batch)
    return strategy.fetch(state)


def main(rule: str, updates: str) -> None:
    fetched = train(sg.ParameterServerStrategy(update=eval(rule)), int(updates))  # noqa: S307
    alone = train(sg.OneDeviceStrategy(), int(updates))
    last = batches(int(updates))[-1]
    tell(
        step=int(fetched.step),
        loss=float(loss_fn(fetched.params, last)),
        at_first=float(np.mean(last[1] ** 2)),
        away=max(float(np.max(np.abs(fetched.params[name] - alone.params[name]))) for name in alone.params),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
