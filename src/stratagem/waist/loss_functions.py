"""Plain functions as a `Trainable`: any pytree of parameters and a loss function over it."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import jax
from jax.tree_util import PyTreeDef

from stratagem.waist.interfaces import Arrays, Metrics, Trainable
from stratagem.waist.user_functions import asks_for_rng, checked_loss


class LossFunction(Trainable):
    """The base of loss functions over a pytree of parameters.

    The user passes the parameters to `strategy.init` and takes trained values with `strategy.fetch`; there is no other
    state, and `strategy.run` serves for predictions.
    """

    reads_optimizer = False
    kinds = None

    def __init__(self, tree: PyTreeDef) -> None:
        self._tree = tree
        self.names = leaf_names(tree)

    @abstractmethod
    def _call(self, flat: Arrays, batch: Any, rng: jax.Array) -> tuple[jax.Array, Metrics]:
        """Return the loss and the metrics."""

    def init(self) -> tuple[Arrays, Arrays]:
        return [], []

    def report(self, state: Arrays) -> Metrics:
        return {}

    def evaluate(self, params: Arrays, state: Arrays, batch: Any) -> Metrics:
        loss, metrics = self._call(params, batch, jax.random.key(0))
        return {**metrics, "loss": loss}

    def predict(self, params: Arrays, state: Arrays, batch: Any) -> Any:
        return None

    def commit(self, params: Arrays, state: Arrays) -> None:
        """Do nothing: there is no model to store values in."""


class FunctionTrainable(LossFunction):
    """A loss function of (parameters, batch), which may also take `rng`.

    It returns the mean loss over the batch, or that and a dictionary of metrics, each a mean over the batch.
    """

    def __init__(self, tree: PyTreeDef, loss_fn: Callable[..., Any]) -> None:
        super().__init__(tree)
        self._loss_fn = loss_fn
        self._wants_rng = asks_for_rng(loss_fn, "params")

    def loss_and_grad(
        self, params: Arrays, state: Arrays, batch: Any, rng: jax.Array
    ) -> tuple[tuple[jax.Array, Arrays, Metrics], Arrays]:
        def loss_of(flat: Arrays) -> tuple[jax.Array, Metrics]:
            return self._call(flat, batch, rng)

        (loss, metrics), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
        return (loss, state, metrics), grads

    def _call(self, flat: Arrays, batch: Any, rng: jax.Array) -> tuple[jax.Array, Metrics]:
        params = jax.tree.unflatten(self._tree, flat)
        result = self._loss_fn(params, batch, rng=rng) if self._wants_rng else self._loss_fn(params, batch)
        return checked_loss(result)


def leaf_names(tree: PyTreeDef) -> list[str]:
    """Return the names of the leaves of a structure: the path to each."""
    placeholder = jax.tree.unflatten(tree, range(tree.num_leaves))
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(placeholder)]
