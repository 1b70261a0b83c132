"""Small Flax NNX models, and how plain Flax trains them on one device: what all strategies are compared with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

import stratagem as sg

Batch = tuple[Any, Any]


def kernel(key: jax.Array, shape: tuple[int, ...], dtype: Any = np.float32, **_: Any) -> jax.Array:
    """Weights that need no compiler: most of what these tests cost is compiling."""
    return jax.numpy.asarray(np.random.default_rng(shape).standard_normal(shape).astype(dtype) * 0.4)


def linear(inputs: int, outputs: int, rngs: nnx.Rngs) -> nnx.Linear:
    return nnx.Linear(inputs, outputs, kernel_init=kernel, rngs=rngs)


class Dense(nnx.Module):
    """One block that is used twice: shared, so its weights are there once."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(1)
        self.first = linear(6, 8, rngs)
        self.blocks = nnx.List([linear(8, 8, rngs)])
        self.shared = self.blocks[0]
        self.last = linear(8, 3, rngs)

    def __call__(self, images: Any) -> Any:
        hidden = nnx.tanh(self.blocks[0](nnx.tanh(self.first(images))))
        return self.last(nnx.tanh(self.shared(hidden)))


class Noisy(nnx.Module):
    """Batch statistics of the images themselves, dropout, and a number that each worker draws at each step."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(2)
        self.norm = nnx.BatchNorm(6, momentum=0.7, rngs=rngs)
        self.first = linear(6, 8, rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.last = linear(8, 3, rngs)
        self.draws = nnx.RngStream(3, tag="draws")

    def __call__(self, images: Any) -> Any:
        return self.last(self.dropout(nnx.tanh(self.first(self.norm(images)))))


def batches(steps: int, sizes: tuple[int, ...] = (12,)) -> list[Batch]:
    random = np.random.default_rng(5)
    made = []
    for step in range(steps):
        images = random.standard_normal((sizes[step % len(sizes)], 6)).astype(np.float32)
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


@dataclass(frozen=True)
class Case:
    """A model, and what it is trained with.

    Attributes:
        sizes: Rows of the global batches, in turn: over two workers or devices, even shares and uneven ones.
    """

    make: Callable[[], Any]
    loss: Callable[..., Any]
    optimizer: Callable[[], optax.GradientTransformation]
    sizes: tuple[int, ...]

    def batches(self, steps: int) -> list[Batch]:
        return batches(steps, self.sizes)


CASES = {
    "dense": Case(Dense, loss_fn, lambda: optax.adam(1e-2), (12,)),
    "noisy": Case(Noisy, drawing_loss_fn, lambda: optax.sgd(0.1), (12, 9)),
}


def plain(name: str, steps: int) -> dict[str, Any]:
    """What plain Flax makes of a model."""
    case = CASES[name]
    model = case.make()
    optimizer = nnx.Optimizer(model, case.optimizer(), wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, optimizer: Any, batch: Batch) -> Any:
        (value, metrics), grads = nnx.value_and_grad(case.loss, has_aux=True)(model, batch)
        optimizer.update(model, grads)
        return {"loss": value, **metrics}

    told = [step(model, optimizer, batch) for batch in case.batches(steps)]
    return {**told_metrics(told), **contents("optimizer", optimizer), **contents("model", model)}


def contents(what: str, node: Any) -> dict[str, Any]:
    """All that is in a model or an optimizer, by its path; and what a model makes of some images."""
    found = {}
    for path, leaf in jax.tree.leaves_with_path(nnx.state(node)):
        is_key = jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        found[what + jax.tree_util.keystr(path)] = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
    if what == "model":
        node.eval()
        found["predictions"] = np.asarray(nnx.jit(_predictions)(node, batches(1)[0][0]))
        node.train()
    return found


def _predictions(model: Any, images: Any) -> Any:
    return model(images)


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
    case = CASES[name]
    model = case.make()
    trainable = sg.flax.Trainable(model, case.loss)
    optimizer = nnx.Optimizer(model, case.optimizer(), wrt=nnx.Param) if with_flax_optimizer else None
    state = strategy.init(trainable, trainable.updater(optimizer) or case.optimizer(), **options)
    step = strategy.train_step(trainable)
    told = []
    for batch in strategy.distribute(case.batches(steps)):
        state, metrics = step(state, batch)
        told.append(metrics)
    fetched = strategy.fetch(state)
    found = {**told_metrics(told), **contents("model", model), "step": fetched.step}
    return found if optimizer is None else {**found, **contents("optimizer", optimizer)}
