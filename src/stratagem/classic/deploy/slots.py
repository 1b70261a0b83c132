"""The state of an optimizer as variables: each piece beside the variable that it belongs to."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import DictKey

from stratagem.classic.deploy.variables import Variables


class Slots:
    """Makes the variables of an optimizer, and translates between them and the optimizer's own structure.

    Args:
        optimizer: The optimizer.
        variables: All variables; those of the optimizer are added.
        trained: The names of those that the optimizer trains.
    """

    def __init__(
        self, optimizer: optax.GradientTransformation, variables: Variables, trained: Sequence[str]
    ) -> None:
        state = optimizer.init({name: jnp.asarray(variables[name].read()) for name in trained})
        leaves, self._tree = jax.tree_util.tree_flatten_with_path(state)
        self.names = []
        for path, leaf in leaves:
            name = f"optimizer/{jax.tree_util.keystr(path, simple=True, separator='/')}"
            value, owner = jnp.asarray(leaf), _owner(path, trained)
            variables.add(name, value, variables.home(value) if owner is None else variables[owner].device)
            self.names.append(name)

    def whole(self, named: Mapping[str, Any]) -> Any:
        """The optimizer's state, of the values of its variables; traceable."""
        return jax.tree.unflatten(self._tree, [named[name] for name in self.names])

    def named(self, state: Any) -> dict[str, Any]:
        """The values of its variables, of the optimizer's state; traceable."""
        return dict(zip(self.names, jax.tree.leaves(state), strict=True))


def _owner(path: Sequence[Any], trained: Sequence[str]) -> str | None:
    """The variable that a piece of state belongs to, if the way to it ends with its name."""
    last = path[-1] if path else None
    return str(last.key) if isinstance(last, DictKey) and last.key in trained else None
