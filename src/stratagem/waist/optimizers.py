"""An optax transformation as an `Updater`."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import PyTreeDef

from stratagem.errors import StrategyError
from stratagem.waist.interfaces import Arrays
from stratagem.waist.keys import Keys


class OptaxUpdater:
    """Any optax optimizer, over a pytree of parameters of the user's.

    Random keys in its state (`optax.add_noise`) are the integers that they are made of everywhere but in here.

    Args:
        optimizer: The optimizer.
        tree: The structure of the parameters, which some optimizers look at (masks, labels).
    """

    def __init__(self, optimizer: optax.GradientTransformation, tree: PyTreeDef) -> None:
        self._optimizer = optax.with_extra_args_support(optimizer)
        self._tree = tree
        self._keys = Keys(())
        self.state_tree = jax.tree.structure(None)
        """The structure of the optimizer's state, once `init` has made one."""

    def init(self, params: Arrays) -> Arrays:
        """See `Updater`."""
        leaves, self.state_tree = jax.tree.flatten(self._optimizer.init(self._whole(params)))
        self._keys = Keys(leaves)
        return self._keys.as_integers(leaves)

    def taken(self, params: Arrays, opt_state: Any) -> Arrays:
        """A state that the optimizer has made for such parameters, as a flat list.

        Raises:
            StrategyError: It is of another optimizer, or of other parameters.
        """
        expected = jax.eval_shape(self.init, params)
        tree: Any = jax.tree.structure(opt_state)
        taken = self._keys.as_integers(jax.tree.leaves(opt_state)) if tree == self.state_tree else None
        if taken is None or [jnp.shape(leaf) for leaf in taken] != [leaf.shape for leaf in expected]:
            raise StrategyError(
                f"the optimizer's state is {jax.tree.map(jnp.shape, opt_state)!r:.200}, which is not of this optimizer for "
                "these parameters: give what optimizer.init(params) or optimizer.update(…) returned"
            )
        return [jnp.asarray(leaf) for leaf in taken]

    def update(self, params: Arrays, opt_state: Arrays, grads: Arrays) -> tuple[Arrays, Arrays]:
        """See `Updater`."""
        whole = self._whole(params)
        state = jax.tree.unflatten(self.state_tree, self._keys.as_keys(opt_state))
        updates, state = self._optimizer.update(self._whole(grads), state, whole)
        updated = jax.tree.leaves(optax.apply_updates(whole, updates))
        return updated, self._keys.as_integers(jax.tree.leaves(state))

    def commit(self, opt_state: Arrays) -> None:
        """Nothing to do: the user takes the state with `strategy.fetch`."""

    def _whole(self, flat: Arrays) -> Any:
        return jax.tree.unflatten(self._tree, flat)


def is_optax(optimizer: object) -> bool:
    """Whether something is an optax optimizer, or can be used as one."""
    return all(callable(getattr(optimizer, name, None)) for name in ("init", "update"))
