"""Plain functions as a `Trainable`: any pytree of parameters and a loss function over it."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import jax
from jax.tree_util import PyTreeDef

from stratagem.waist.arguments import asks_for_rng
from stratagem.waist.interfaces import Arrays, Metrics
from stratagem.waist.returned import checked_loss


class LossFunction(ABC):
    """What all loss functions over a pytree of parameters have in common, as a `Trainable`.

    Args:
        tree: The structure of the parameters.
    """

    reads_optimizer = False
    kinds = None

    def __init__(self, tree: PyTreeDef) -> None:
        self._tree = tree
        self.names = leaf_names(tree)

    @abstractmethod
    def _call(self, flat: Arrays, batch: Any, rng: jax.Array) -> tuple[jax.Array, Metrics]:
        """The loss and the metrics."""

    def init(self) -> tuple[Arrays, Arrays]:
        """Not asked for: the user gives the parameters to `strategy.init`."""
        return [], []

    def report(self, state: Arrays) -> Metrics:
        """Nothing: there is no state."""
        return {}

    def evaluate(self, params: Arrays, state: Arrays, batch: Any) -> Metrics:
        """See `Trainable`."""
        loss, metrics = self._call(params, batch, jax.random.key(0))
        return {**metrics, "loss": loss}

    def predict(self, params: Arrays, state: Arrays, batch: Any) -> Any:
        """A loss function predicts nothing: `strategy.run` runs whatever does."""
        return None

    def commit(self, params: Arrays, state: Arrays) -> None:  # noqa: B027  there is nothing to do
        """Nothing to do: the user takes the values with `strategy.fetch`."""


class FunctionTrainable(LossFunction):
    """A loss function of (parameters, batch), which may also ask for `rng`.

    It returns the mean loss over the batch, or that and a dictionary of metrics, each a mean over the batch.

    Args:
        tree: The structure of the parameters.
        loss_fn: The loss function.
    """

    def __init__(self, tree: PyTreeDef, loss_fn: Callable[..., Any]) -> None:
        super().__init__(tree)
        self._loss_fn = loss_fn
        self._wants_rng = asks_for_rng(loss_fn, "params")

    def loss_and_grad(
        self, params: Arrays, state: Arrays, batch: Any, rng: jax.Array
    ) -> tuple[tuple[jax.Array, Arrays, Metrics], Arrays]:
        """See `Trainable`."""

        def loss_of(flat: Arrays) -> tuple[jax.Array, Metrics]:
            return self._call(flat, batch, rng)

        (loss, metrics), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
        return (loss, state, metrics), grads

    def _call(self, flat: Arrays, batch: Any, rng: jax.Array) -> tuple[jax.Array, Metrics]:
        params = jax.tree.unflatten(self._tree, flat)
        returned = self._loss_fn(params, batch, rng=rng) if self._wants_rng else self._loss_fn(params, batch)
        return checked_loss(returned)


def leaf_names(tree: PyTreeDef) -> list[str]:
    """What the leaves of a structure are called: the way to each."""
    placeholder = jax.tree.unflatten(tree, range(tree.num_leaves))
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(placeholder)]
