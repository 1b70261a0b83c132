"""Processes that save checkpoint after checkpoint until they are killed; run as a script."""

import os
import sys
import threading
from typing import Any

import jax
import numpy as np
import optax

from drills.processes import fork
from stratagem import Checkpointer, TrainState
from stratagem.waist import OptaxUpdater, Recipe

ROWS = 30_000


def state_of(step: int) -> TrainState:
    """Return a state whose numbers all equal `step`, on the host, so that JAX need not start for it."""
    params = {"w": np.full((ROWS, 4), step, np.float32), "b": np.full(3, step, np.float32)}
    leaves, tree = jax.tree.flatten(params)
    slots, opt_tree = jax.tree.flatten({"trace": params, "count": np.int32(step)})
    recipe = Recipe(OptaxUpdater(optax.sgd(0.1), tree), tree, opt_tree, ("b", "w"))
    return TrainState(leaves, slots, [], None, np.int32(step), recipe)


def save_on(directory: str) -> None:
    """Resume from the newest checkpoint, and report each checkpoint when the next one begins."""
    checkpoints = Checkpointer(directory, keep=2)
    restored = checkpoints.restore(like=state_of(0))
    step = 0 if restored is None else int(restored.step)
    _check(restored, checkpoints.data)
    tell(step)
    while True:
        step += 1
        checkpoints.save(state_of(step), data=step)
        checkpoints.wait()
        tell(step)


def _check(restored: Any, data: Any) -> None:
    if restored is not None:
        numbers = {float(n) for leaf in jax.tree.leaves(restored) for n in np.unique(np.asarray(leaf))}
        assert numbers == {float(data)}, f"mixed: {numbers}"


def tell(word: object) -> None:
    os.write(1, f"{word}\n".encode())


def main(directory: str) -> None:
    """For each line of standard input, fork a saver, which has everything imported, and report its end."""
    for _ in sys.stdin:
        pid = fork()
        if pid == 0:
            tell(os.getpid())
            assert threading.active_count() == 1
            save_on(directory)
        _, status = os.waitpid(pid, 0)
        tell(f"gone {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main(sys.argv[1])
