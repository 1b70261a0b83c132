"""The two interfaces between models and strategies. Everything in them is a flat list of arrays, and traceable by JAX."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp

Arrays: TypeAlias = list[Any]
"""A flat list of arrays, or of what stands for them while JAX traces."""
Metrics: TypeAlias = dict[str, Any]
"""Means over the rows of a batch, by name."""
Kind: TypeAlias = Literal["mean", "own", "sum"]
"""How the workers' values of a piece of non-trained state are combined: they are averaged, each worker keeps its own, or
what each has added is summed."""


def natural_kind(array: Any) -> Kind:
    """Return the kind of a piece of state by its dtype: statistics are averaged, seeds and counters are not."""
    return "mean" if jnp.issubdtype(array.dtype, jnp.floating) else "own"


@runtime_checkable
class Trainable(Protocol):
    """A model and its loss, as a strategy sees them.

    Attributes:
        reads_optimizer: Whether it needs the optimizer's state too (to scale the loss, for example), which is then
            appended to the non-trained state. Parameter servers cannot provide it.
        names: The parameters' names, in their order.
        kinds: The kind of each piece of state; `None` if their natural kinds are right.
    """

    reads_optimizer: bool
    names: Sequence[str]
    kinds: Sequence[Kind] | None

    def init(self) -> tuple[Arrays, Arrays]:
        """Return the initial parameters, and the initial state that is not trained (statistics, seeds)."""
        ...

    def loss_and_grad(
        self, params: Arrays, state: Arrays, batch: Any, rng: jax.Array
    ) -> tuple[tuple[jax.Array, Arrays, Metrics], Arrays]:
        """Return the mean loss over a batch, the new state and the metrics; and the gradients of the loss."""
        ...

    def report(self, state: Arrays) -> Metrics:
        """Return metrics that are read from the state after an update: running means, for example."""
        ...

    def evaluate(self, params: Arrays, state: Arrays, batch: Any) -> Metrics:
        """Return the metrics over a batch, without training."""
        ...

    def predict(self, params: Arrays, state: Arrays, batch: Any) -> Any:
        """Return the model's outputs for a batch, row by row."""
        ...

    def commit(self, params: Arrays, state: Arrays) -> None:
        """Store trained values in the model that the user holds."""
        ...


@runtime_checkable
class Updater(Protocol):
    """An optimizer, as a strategy sees it."""

    def init(self, params: Arrays) -> Arrays:
        """Return the initial state of the optimizer."""
        ...

    def update(self, params: Arrays, opt_state: Arrays, grads: Arrays) -> tuple[Arrays, Arrays]:
        """Return new parameters and new state from the gradients."""
        ...

    def commit(self, opt_state: Arrays) -> None:
        """Store the state in the optimizer that the user holds."""
        ...


@runtime_checkable
class MakesUpdaters(Protocol):
    """A trainable of a library that has optimizers of its own."""

    def updater(self, optimizer: Any) -> Updater | None:
        """Return an optimizer of the library as an `Updater`; `None` if it is not of the library."""
        ...
