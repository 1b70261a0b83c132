"""An `nnx.Optimizer` as an `Updater`."""

import jax
import jax.numpy as jnp

from stratagem.errors import StrategyError
from stratagem.flax.layout import Layout
from stratagem.flax.library import nnx
from stratagem.waist import Arrays, Keys, Updater


class OptimizerUpdater(Updater):
    """A Flax NNX optimizer, over the trained variables of a model.

    Args:
        optimizer: The optimizer.
        layout: The variables' layout.
    """

    def __init__(self, optimizer: nnx.Optimizer, layout: Layout) -> None:  # type: ignore[type-arg]
        if isinstance(optimizer, nnx.ModelAndOptimizer):
            raise StrategyError("nnx.ModelAndOptimizer has a model of its own in it: give an nnx.Optimizer")
        self._optimizer = optimizer
        self._layout = layout
        self._graph, state = nnx.split(optimizer)
        leaves, self._tree = jax.tree.flatten(state)
        self._keys = Keys(leaves)

    def init(self, params: Arrays) -> Arrays:
        """Its state as it is: moments, and the number of steps."""
        return self._keys.as_integers(jax.tree.leaves(nnx.state(self._optimizer)))

    def update(self, params: Arrays, opt_state: Arrays, grads: Arrays) -> tuple[Arrays, Arrays]:
        variables = self._layout.trained(params)
        state = jax.tree.unflatten(self._tree, self._keys.as_keys(opt_state))
        optimizer = nnx.merge(self._graph, state)
        optimizer.update(variables, self._layout.trained(grads))
        after = self._keys.as_integers(jax.tree.leaves(nnx.state(optimizer)))
        return jax.tree.leaves(variables), after

    def commit(self, opt_state: Arrays) -> None:
        """Take the state back into the user's optimizer, in place."""
        whole = self._keys.as_keys(list(map(jnp.asarray, opt_state)))
        nnx.update(self._optimizer, jax.tree.unflatten(self._tree, whole))
