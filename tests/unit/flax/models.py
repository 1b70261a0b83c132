"""Small Flax NNX models, and how plain Flax trains them on one device: what all strategies are compared with."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

Batch = tuple[Any, Any]
SIZES = [12, 12, 9, 12, 1]
"""Rows of the global batches, in turn: some divide over two, some do not, one leaves a worker without a row."""


class Dense(nnx.Module):
    """One block that is used twice: shared, so its weights are there once."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(1)
        self.first = nnx.Linear(6, 8, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(8, 8, rngs=rngs)])
        self.shared = self.blocks[0]
        self.last = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, images: Any) -> Any:
        hidden = nnx.tanh(self.blocks[0](nnx.tanh(self.first(images))))
        return self.last(nnx.tanh(self.shared(hidden)))


class Normed(nnx.Module):
    """Batch statistics of the images themselves: their mean is the mean of the workers' means."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(2)
        self.norm = nnx.BatchNorm(6, momentum=0.7, rngs=rngs)
        self.first = nnx.Linear(6, 8, rngs=rngs)
        self.last = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, images: Any) -> Any:
        return self.last(nnx.tanh(self.first(self.norm(images))))


class Noisy(nnx.Module):
    """Dropout, and a number that each worker draws at each step."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(3)
        self.first = nnx.Linear(6, 16, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(16, 3, rngs=rngs)
        self.draws = nnx.RngStream(4, tag="draws")

    def __call__(self, images: Any) -> Any:
        return self.last(self.dropout(nnx.tanh(self.first(images))))


def batches(steps: int) -> list[Batch]:
    random = np.random.default_rng(5)
    made = []
    for step in range(steps):
        images = random.standard_normal((SIZES[step % len(SIZES)], 6)).astype(np.float32)
        made.append((images, np.argmax(images[:, :3] + images[:, 3:] ** 2, axis=1).astype(np.int32)))
    return made


def loss_fn(model: Any, batch: Batch) -> tuple[jax.Array, dict[str, Any]]:
    images, labels = batch
    scores = model(images)
    losses = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
    return losses.mean(), {"accuracy": (scores.argmax(axis=1) == labels).mean()}


def drawing_loss_fn(model: Any, batch: Batch) -> tuple[jax.Array, dict[str, Any]]:
    """Tells the mean over workers of what each has drawn, and of its square: whose difference is their variance."""
    drawn = jax.random.uniform(model.draws())
    return loss_fn(model, batch)[0], {"drawn": drawn, "squared": drawn**2}


MODELS: dict[str, tuple[Callable[[], Any], Callable[..., Any]]] = {
    "dense": (Dense, loss_fn),
    "normed": (Normed, loss_fn),
    "noisy": (Noisy, drawing_loss_fn),
}


def optimizer() -> optax.GradientTransformation:
    return optax.adam(1e-2)


def plain(name: str, steps: int) -> dict[str, Any]:
    """What plain Flax makes of a model."""
    make, loss = MODELS[name]
    model = make()
    flax_optimizer = nnx.Optimizer(model, optimizer(), wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, flax_optimizer: Any, batch: Batch) -> Any:
        (value, metrics), grads = nnx.value_and_grad(loss, has_aux=True)(model, batch)
        flax_optimizer.update(model, grads)
        return {"loss": value, **metrics}

    told = [step(model, flax_optimizer, batch) for batch in batches(steps)]
    return {**told_metrics(told), **contents("optimizer", flax_optimizer), **contents("model", model)}


def contents(what: str, node: Any) -> dict[str, Any]:
    """All that is in a model or an optimizer, by its path; and what a model makes of some images."""
    found = {}
    for path, leaf in jax.tree.leaves_with_path(nnx.state(node)):
        is_key = jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        found[what + jax.tree_util.keystr(path)] = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
    if what == "model":
        node.eval()
        found["predictions"] = np.asarray(node(batches(1)[0][0]))
        node.train()
    return found


def told_metrics(told: list[dict[str, Any]]) -> dict[str, Any]:
    """For each metric, its value at every step."""
    return {
        name: np.asarray([float(each[name]) for each in told])
        for name in ("loss", "accuracy", "drawn", "squared")
        if name in told[0]
    }


def trained(
    strategy: Any, name: str, steps: int, *, with_flax_optimizer: bool = False, **options: Any
) -> dict[str, Any]:
    """What a strategy makes of a model."""
    import stratagem as sg

    make, loss = MODELS[name]
    model = make()
    trainable = sg.flax.Trainable(model, loss)
    flax_optimizer = nnx.Optimizer(model, optimizer(), wrt=nnx.Param)
    state = strategy.init(
        trainable, trainable.updater(flax_optimizer) if with_flax_optimizer else optimizer(), **options
    )
    step = strategy.train_step(trainable)
    told = []
    for batch in strategy.distribute(batches(steps)):
        state, metrics = step(state, batch)
        told.append(metrics)
    fetched = strategy.fetch(state)
    found = {**told_metrics(told), **contents("model", model), "step": fetched.step}
    return {**found, **contents("optimizer", flax_optimizer)} if with_flax_optimizer else found
