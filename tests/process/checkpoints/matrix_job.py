"""Saves under some strategies, waits until all have saved, and restores what each of them saved; run as a script.

python matrix_job.py DIRECTORY NAME…, where a name is one of STRATEGIES.
"""

import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import stratagem as sg

STRATEGIES = {
    "one": "sg.OneDeviceStrategy()",
    "mirrored": "sg.MirroredStrategy()",
    "central": "sg.CentralStorageStrategy()",
    "workers": "sg.MultiWorkerMirroredStrategy(communication='shm')",
    "server": "sg.ParameterServerStrategy(update=sg.Sync())",
    "servers": "sg.ParameterServerStrategy(update=sg.Sync(), partitioner=sg.FixedShards(2))",
}
FIRST_STEP = 3
"""The first strategy saves at this step, the others each a step later."""


def seed_of(name: str) -> int:
    """Two different ones in all: for each, a step is compiled anew."""
    return int(name in ("one", "servers"))


def batch(number: int) -> Any:
    return np.random.default_rng(number).standard_normal((8, 4)).astype(np.float32)


def loss_fn(params: Any, rows: Any, rng: Any) -> Any:
    noise = jax.random.normal(rng, ())  # of another seed, another one
    return jnp.mean((rows @ params["w"] + params["b"]) ** 2) + 0 * noise


def leaves(fetched: Any) -> dict[str, Any]:
    """All numbers of a fetched state, by the way to them."""
    whole = {"params": fetched.params, "opt_state": fetched.opt_state, "ema": fetched.ema}
    found = jax.tree_util.tree_leaves_with_path({**whole, "step": fetched.step})
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in found}


class Trained:
    """A strategy with a model of its own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = list(STRATEGIES).index(name)
        self.strategy = eval(STRATEGIES[name])  # noqa: S307
        params = {"w": np.full((4, 3), 0.5, np.float32), "b": np.zeros(3, np.float32)}
        optimizer = optax.adam(0.01)
        self.state = self.strategy.init(params, optimizer, ema_decay=0.9, seed=seed_of(name))
        self.step = self.strategy.train_step(loss_fn)

    def train(self, numbers: range) -> None:
        for rows in self.strategy.distribute([batch(number) for number in numbers]):
            self.state, _ = self.step(self.state, rows)

    def save(self, directory: Path) -> None:
        last = FIRST_STEP + self.number
        self.train(range(last))
        with sg.Checkpointer(directory / self.name) as checkpoints:
            checkpoints.save(self.state, data={"next": last})
        self.keep(directory / f"{self.name}.npz")

    def restore(self, directory: Path, name: str) -> None:
        """What another saved, and what one more step makes of it."""
        checkpoints = sg.Checkpointer(directory / name)
        restored = checkpoints.restore(like=self.state)
        assert restored is not None
        self.state = restored
        assert self.state.recipe.seed == seed_of(name)
        self.keep(directory / f"{name}-{self.name}.npz")
        following = checkpoints.data["next"]
        self.train(range(following, following + 1))
        self.keep(directory / f"{name}-{self.name}-trained.npz")

    def keep(self, path: Path) -> None:
        found = leaves(self.strategy.fetch(self.state))
        if self.strategy.is_chief:
            np.savez(path, **found)


def main(place: str, *names: str) -> None:
    directory = Path(place)
    trained = [Trained(name) for name in names]
    for each in trained:
        each.save(directory)
    for each in trained:
        if each.strategy.is_chief:
            (directory / f"{each.name}.saved").touch()
    deadline = time.monotonic() + 90
    while not all((directory / f"{name}.saved").exists() for name in STRATEGIES):
        assert time.monotonic() < deadline, "others have not saved"
        time.sleep(0.01)
    for each in trained:
        for name in STRATEGIES:
            each.restore(directory, name)
        each.strategy.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
