"""A Flax NNX model as two flat lists of arrays, trained and not trained, and back. The one place that imports Flax.

Strategies have the lists. The model is put together from them inside the function that JAX traces, so its variables
belong to that trace and may be written to there.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import GetAttrKey, PyTreeDef

from stratagem.errors import MissingExtra, StrategyError
from stratagem.waist import Arrays, Keys, Kind
from stratagem.waist.interfaces import natural_kind

try:
    from flax import nnx as nnx
except ModuleNotFoundError as error:
    if error.name != "flax":  # Flax is there, but a module of its own or a dependency is not
        raise
    raise MissingExtra(
        "sg.flax trains Flax NNX models, and Flax is not installed: pip install 'stratagem[flax]'"
    ) from error


class ModelLayout:
    """Which array of which list is which variable of a model.

    Args:
        model: The model.
        wrt: A Flax filter: which variables are trained.

    Attributes:
        names: The trained variables' names: their paths in the model, with dots.
        kinds: For each array that is not trained, how workers bring it together.
        keys: Where among those the random keys are.
    """

    def __init__(self, model: nnx.Module, wrt: Any) -> None:
        # Parameters that are not trained are apart from the rest: workers need not exchange them.
        self._filters = (wrt, nnx.Param, ...)
        self._graph, groups = self._split(nnx.clone(model))
        self._trees: list[PyTreeDef] = [jax.tree.structure(group) for group in groups]
        self.names = _names(groups[0])
        _check(self.names, wrt)
        self._frozen = _names(groups[1])
        others = jax.tree.leaves(groups[1:])
        self.keys = Keys(others)
        rest = self.keys.as_integers(others)[len(self._frozen) :]
        own: list[Kind] = ["own"] * len(self._frozen)
        self.kinds = [*own, *(natural_kind(each) for each in rest)]

    def read(self, model: nnx.Module) -> tuple[Arrays, Arrays]:
        """Return the arrays that the user's model has now; the model stays as it is."""
        return self.take_apart(nnx.clone(model))

    def build(self, params: Arrays, others: Arrays) -> Any:
        """Return a new model with these values."""
        return nnx.merge(self._graph, *self._states(params, others))

    def take_apart(self, model: nnx.Module) -> tuple[Arrays, Arrays]:
        """Return the arrays of a model that `build` has made."""
        _, groups = self._split(model)
        trees = [jax.tree.structure(group) for group in groups]
        if trees != self._trees:
            raise StrategyError(
                f"the model has other variables than when its sg.flax.Trainable was made: "
                f"{_difference(self._trees, trees)}. A model has all its variables from the start; make the Trainable "
                "when it has"
            )
        return jax.tree.leaves(groups[0]), self.keys.as_integers(jax.tree.leaves(groups[1:]))

    def write(self, model: nnx.Module, params: Arrays, others: Arrays) -> None:
        """Set the values of the user's model, in place."""
        nnx.update(model, *self._states(list(map(jnp.asarray, params)), list(map(jnp.asarray, others))))

    def as_flax(self, values: Arrays) -> Any:
        """Return the trained variables, or their gradients, in Flax's own structure."""
        return jax.tree.unflatten(self._trees[0], values)

    def check_frozen(self, before: Arrays, after: Arrays) -> None:
        """Raise if a parameter was written to that is not trained: each worker would have its own value."""
        written = [
            name for name, old, new in zip(self._frozen, before, after, strict=False) if old is not new
        ]
        if written:
            raise StrategyError(
                f"the loss function writes to {', '.join(written)}: parameters that are not trained stay as they are. "
                "Make them variables of a type of your own (class Teacher(nnx.Variable): ...), which workers average"
            )

    def _split(self, model: nnx.Module) -> tuple[Any, list[Any]]:
        nnx.pop(model, nnx.Intermediate)  # intermediates that a call leaves to be inspected are not state
        graph, *groups = nnx.split(model, *self._filters)
        return graph, groups

    def _states(self, params: Arrays, others: Arrays) -> list[Any]:
        whole = self.keys.as_keys(others)
        values = (params, whole[: len(self._frozen)], whole[len(self._frozen) :])
        return [jax.tree.unflatten(tree, each) for tree, each in zip(self._trees, values, strict=True)]


def _names(group: Any) -> list[str]:
    """Return the paths of the leaves, without the attribute in which each variable has its value."""
    return [
        ".".join(
            str(getattr(key, "key", getattr(key, "idx", key)))
            for key in path
            if not isinstance(key, GetAttrKey)
        )
        for path, _ in jax.tree.leaves_with_path(group)
    ]


def _check(names: Sequence[str], wrt: Any) -> None:
    if not names:
        raise StrategyError(
            f"the model has no variable that wrt={wrt} stands for: nothing to train; give another filter"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise StrategyError(
            f"two variables of the model are called {twice[0]!r}; rename one of those with a dot in it"
        )


def _difference(before: list[PyTreeDef], now: list[PyTreeDef]) -> str:
    """Name what only one of the structures has."""
    old, new = ({name for tree in trees for name in _tree_names(tree)} for trees in (before, now))
    changes = [
        f"{', '.join(sorted(names))} {verb}"
        for names, verb in ((new - old, "came"), (old - new, "went"))
        if names
    ]
    return " and ".join(changes) or "the same names, of other types"


def _tree_names(tree: PyTreeDef) -> list[str]:
    return _names(jax.tree.unflatten(tree, range(tree.num_leaves)))
