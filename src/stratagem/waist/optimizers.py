"""An optax transformation as an `Updater`, and random keys in its state as the integers that they are made of."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import PyTreeDef

from stratagem.errors import StrategyError
from stratagem.waist.interfaces import Arrays, Updater


class Keys:
    """The positions of typed random keys in a list of arrays, which travel as the integers that they are made of.

    Not everything that carries arrays between processes, or into files, knows keys.

    Args:
        leaves: Such a list.
    """

    def __init__(self, leaves: Sequence[Any]) -> None:
        self._implementations = {
            number: str(jax.random.key_impl(leaf))
            for number, leaf in enumerate(leaves)
            if jnp.issubdtype(getattr(leaf, "dtype", np.uint32), jax.dtypes.prng_key)
        }

    def __contains__(self, number: object) -> bool:
        return number in self._implementations

    def __iter__(self) -> Iterator[int]:
        return iter(self._implementations)

    def __len__(self) -> int:
        return len(self._implementations)

    def key(self, number: int, integers: Any) -> jax.Array:
        """Return the key, or the array of keys, at one position."""
        key: jax.Array = jax.random.wrap_key_data(integers, impl=self._implementations[number])
        return key

    def as_integers(self, leaves: Sequence[Any]) -> Arrays:
        """Return the list with keys as integers."""
        return [jax.random.key_data(leaf) if number in self else leaf for number, leaf in enumerate(leaves)]

    def as_keys(self, leaves: Sequence[Any]) -> Arrays:
        """Return the list with integers as keys again."""
        return [self.key(number, leaf) if number in self else leaf for number, leaf in enumerate(leaves)]


class OptaxUpdater(Updater):
    """An optax optimizer, over a pytree of parameters.

    Random keys in its state (`optax.add_noise`) are integers everywhere outside of this class.

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
        leaves, self.state_tree = jax.tree.flatten(self._optimizer.init(self._whole(params)))
        self._keys = Keys(leaves)
        return self._keys.as_integers(leaves)

    def flatten_state(self, params: Arrays, opt_state: Any) -> Arrays:
        """Flatten a state that the optimizer has made for such parameters.

        Raises:
            StrategyError: The state is of another optimizer, or of other parameters.
        """
        expected = jax.eval_shape(self.init, params)
        tree: Any = jax.tree.structure(opt_state)
        leaves = self._keys.as_integers(jax.tree.leaves(opt_state)) if tree == self.state_tree else None
        if leaves is None or [jnp.shape(leaf) for leaf in leaves] != [leaf.shape for leaf in expected]:
            raise StrategyError(
                f"the optimizer's state is {jax.tree.map(jnp.shape, opt_state)!r:.200}, which is not of this optimizer for "
                "these parameters: give what optimizer.init(params) or optimizer.update(…) returned"
            )
        return [jnp.asarray(leaf) for leaf in leaves]

    def update(self, params: Arrays, opt_state: Arrays, grads: Arrays) -> tuple[Arrays, Arrays]:
        whole = self._whole(params)
        state = jax.tree.unflatten(self.state_tree, self._keys.as_keys(opt_state))
        updates, state = self._optimizer.update(self._whole(grads), state, whole)
        updated = jax.tree.leaves(optax.apply_updates(whole, updates))
        return updated, self._keys.as_integers(jax.tree.leaves(state))

    def commit(self, opt_state: Arrays) -> None:
        """Do nothing: the user takes the state with `strategy.fetch`."""

    def _whole(self, flat: Arrays) -> Any:
        return jax.tree.unflatten(self._tree, flat)


def is_optax(optimizer: object) -> bool:
    """Return whether an object is an optax optimizer, or can be used as one."""
    return all(callable(getattr(optimizer, name, None)) for name in ("init", "update"))
