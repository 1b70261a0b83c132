"""A model that counts its own updates, and a worker that trains it until the last step is set.

python drills/counting_task.py RULE DIRECTORY [ROWS [TABLE]], where RULE is such as `sg.Async()`, and with TABLE the model has a
table too, some of whose rows every update changes. The worker trains until DIRECTORY/target exists, and then to the global
step in it. It writes its progress to DIRECTORY/progress-INDEX; at the end it writes the state that it fetched, with the number
of its own pushes, to DIRECTORY/fetched-INDEX.
"""

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import stratagem as sg

Params = dict[str, Any]
BATCH = np.ones(6, np.float32)
IDS = np.arange(-2, 28).reshape(6, 5) ** 13
"""Which rows of the table an update changes: ids of all sizes."""


def initial(leaves: int = 4, rows: int = 3) -> Params:
    """Return several variables, small by default, so that every server has some."""
    return {f"v{number}": np.zeros((rows, number + 1), np.float32) for number in range(leaves)}


def loss_fn(params: Params, batch: Any) -> jax.Array:
    """Return a loss whose gradient is -1 everywhere for a batch of ones: with a rate of 1, each update adds 1 to each element."""
    total = sum(jnp.sum(leaf) for leaf in jax.tree.leaves(params))
    return jnp.asarray(-jnp.mean(batch) * total)


def loss_with_table(params: Params, batch: Any, rows: Any) -> jax.Array:
    """Return the same loss, over rows of the table as well."""
    total = jnp.sum(rows["counted"](batch["ids"]))
    return loss_fn(params, batch["ones"]) - jnp.mean(batch["ones"]) * total


def table() -> sg.Table:
    """Return a table of zeros, to whose rows every update adds 1, as to variables."""
    return sg.Table("counted", dim=3, initializer=jax.nn.initializers.zeros)


def counting() -> optax.GradientTransformation:
    """Return a transformation that leaves updates unchanged, and counts the updates of every element where that element lives.

    The count depends on the gradient, so that it is not taken for a number that all servers share.
    """

    def init(params: Any) -> Any:
        return jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.int32), params)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        return updates, jax.tree.map(
            lambda count, each: count + jnp.where(jnp.isnan(each), 0, 1), state, updates
        )

    return optax.GradientTransformation(init, update)


def optimizer() -> optax.GradientTransformation:
    """Return an optimizer that counts, then steps by the gradient itself."""
    return optax.chain(counting(), optax.sgd(1.0))


def summary(fetched: Any) -> dict[str, Any]:
    """Return the fetched step, and all distinct values of the counts and of the variables."""
    return {
        "step": int(fetched.step),
        "counts": _numbers(fetched.opt_state[0]),
        "values": _numbers(fetched.params),
    }


def is_even(found: dict[str, Any]) -> bool:
    """Return whether every element, and every row read since, has had as many updates as the global step says."""
    return (
        all(
            len(numbers) == 1 and abs(numbers[0] - found["step"]) < 1e-3 * max(1, found["step"])
            for numbers in (found["counts"], found["values"])
        )
        and found["counts"] == [found["step"]]
        and all(found["step"] <= number <= found["later"] for number in found.get("rows", ()))
    )


def _numbers(arrays: Any) -> list[float]:
    return sorted({float(number) for leaf in jax.tree.leaves(arrays) for number in np.asarray(leaf).ravel()})


def main(rule: str, directory: str, rows: str = "3", has_table: str = "") -> None:
    """Train until the last step is set and reached."""
    place = Path(directory)
    # A task that is killed again and again is started again after up to 30 s: until then it is waited for.
    strategy = sg.ParameterServerStrategy(update=eval(rule), snapshot_secs=0.5, rejoin_timeout=60)  # noqa: S307
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    state = strategy.init(initial(rows=int(rows)), optimizer(), tables=[table()] if has_table else [])
    step = strategy.train_step(loss_with_table if has_table else loss_fn)
    given = {"ones": BATCH, "ids": IDS} if has_table else BATCH
    pushes = 0
    progress, target = place / f"progress-{index}", place / "target"
    for batch in strategy.distribute_from_function(lambda _: itertools.repeat(given)):
        if target.exists() and int(state.step) >= int(target.read_text()):
            break
        state, metrics = step(state, batch)
        pushes += 1
        write(progress, str(metrics["global_step"]))
    found = {**summary(strategy.fetch(state)), "pushes": pushes}
    if has_table:
        found["rows"] = _numbers(strategy.table(state, "counted").lookup(IDS))
        found["later"] = int(strategy.fetch(state).step)
    write(place / f"fetched-{index}", json.dumps(found))
    strategy.close()


def write(path: Path, text: str) -> None:
    """Write a file atomically."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.rename(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
