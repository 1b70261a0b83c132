"""The two interfaces of the waist. Everything in them is a flat list of arrays, and traceable by JAX."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp

Arrays: TypeAlias = list[Any]
"""A flat list of arrays, or of what stands for them while JAX traces."""
Metrics: TypeAlias = dict[str, Any]
"""Means over the rows of a batch, by name."""
Kind: TypeAlias = Literal["mean", "own", "sum"]
"""What becomes of non-trained state when workers have each made their own of it: it is averaged, each keeps its own,
or what each has added is added up."""


def natural_kind(array: Any) -> Kind:
    """The kind of state that nobody has told the kind of: statistics are averaged, seeds and counters are not."""
    return "mean" if jnp.issubdtype(array.dtype, jnp.floating) else "own"


@runtime_checkable
class Trainable(Protocol):
    """A model and its loss, as a strategy sees them.

    Attributes:
        reads_optimizer: Whether it wants the optimizer's state too (to scale the loss, for example): then this follows
            the non-trained state where that is passed in. Not to be had from parameter servers.
    """

    reads_optimizer: bool

    @property
    def names(self) -> Sequence[str]:
        """The parameters' names, in their order."""
        ...

    @property
    def kinds(self) -> Sequence[Kind] | None:
        """For each piece of state its kind; `None` if their natural kinds are right."""
        ...

    def init(self) -> tuple[Arrays, Arrays]:
        """The initial parameters, and the initial state: whatever is not trained (statistics, seeds)."""
        ...

    def loss_and_grad(
        self, params: Arrays, state: Arrays, batch: Any, rng: jax.Array
    ) -> tuple[tuple[jax.Array, Arrays, Metrics], Arrays]:
        """The mean loss over a batch, the new state and the metrics; and the gradients of the loss."""
        ...

    def report(self, state: Arrays) -> Metrics:
        """What the state tells by itself once an update has been made: running means, for example."""
        ...

    def evaluate(self, params: Arrays, state: Arrays, batch: Any) -> Metrics:
        """The metrics over a batch, without training."""
        ...

    def predict(self, params: Arrays, state: Arrays, batch: Any) -> Any:
        """What the model makes of a batch, row by row."""
        ...

    def commit(self, params: Arrays, state: Arrays) -> None:
        """Take trained values back into the model that the user holds."""
        ...


@runtime_checkable
class Updater(Protocol):
    """An optimizer, as a strategy sees it."""

    def init(self, params: Arrays) -> Arrays:
        """The initial state of the optimizer."""
        ...

    def update(self, params: Arrays, opt_state: Arrays, grads: Arrays) -> tuple[Arrays, Arrays]:
        """New parameters and new state from the gradients."""
        ...

    def commit(self, opt_state: Arrays) -> None:
        """Take the state back into the optimizer that the user holds."""
        ...


@runtime_checkable
class MakesUpdaters(Protocol):
    """A trainable of a library that has optimizers of its own."""

    def updater(self, optimizer: Any) -> Updater | None:
        """Such an optimizer as an `Updater`; `None` if it is none of the library's."""
        ...
