"""The mean of gradients over towers: copies of one model on several devices, driven by hand."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Number
from typing import Any

import jax
import numpy as np

from stratagem.errors import StrategyError
from stratagem.waist.functions import leaf_names


def average_gradients(tower_grads: Iterable[Any]) -> Any:
    """The mean gradient of each variable over all towers.

    Args:
        tower_grads: One entry per tower: a pytree of gradients, or a list or iterator of (gradient, variable),
            where all towers have the same variables in the same order (the same objects, or equal names). A gradient
            that is `None` in a tower is left out of the mean; one that is `None` in all stays `None`.

    Returns:
        One entry of the same form; the variables are those of the first tower.

    Raises:
        StrategyError: The towers do not fit together, or hold something else.

    Example:
        >>> average_gradients([[(1.0, "w")], [(3.0, "w")]])
        [(2.0, 'w')]
    """
    if isinstance(tower_grads, Mapping) or not isinstance(tower_grads, Iterable):
        raise StrategyError(
            f"average_gradients got one {type(tower_grads).__name__}; give a list with the gradients of each tower"
        )
    towers = [list(tower) if isinstance(tower, Iterator) else tower for tower in tower_grads]
    if not towers:
        raise StrategyError("average_gradients got no tower; give the gradients of one tower at least")
    if _are_pairs(towers):
        return [_mean_pair(place, column) for place, column in enumerate(zip(*towers, strict=True))]
    flattened = [jax.tree.flatten(tower, is_leaf=lambda value: value is None) for tower in towers]
    _check_equal([tree for _, tree in flattened], "structure")
    tree = flattened[0][1]
    columns = zip(leaf_names(tree), *(leaves for leaves, _ in flattened), strict=True)
    return jax.tree.unflatten(tree, [_mean(name, column) for name, *column in columns])


def _are_pairs(towers: list[Any]) -> bool:
    """Whether these are lists of (gradient, variable), and not pytrees that happen to have pairs in them."""
    if not all(isinstance(tower, list | tuple) and len(tower) == len(towers[0]) > 0 for tower in towers):
        return False
    if not all(isinstance(pair, tuple) and len(pair) == 2 for tower in towers for pair in tower):
        return False
    variables = [[variable for _, variable in tower] for tower in towers]
    if not all(map(_is_gradient, jax.tree.leaves(variables))):
        return True
    return all(list(map(_name, each)) == list(map(_name, variables[0])) for each in variables)


def _is_gradient(value: Any) -> bool:
    return isinstance(value, Number) or hasattr(value, "__array__")


def _name(variable: Any) -> str:
    """The same for what is one variable: its name or, if it has none, which object it is.

    Those of Keras are arrays too, and many of them are called `kernel`.
    """
    name = variable if isinstance(variable, str) else getattr(variable, "name", None)
    if _is_gradient(variable):
        name = None
    return name if isinstance(name, str) else f"{type(variable).__name__} {id(variable):#x}"


def _check_equal(values: Sequence[Any], what: str) -> None:
    known = [(tower, value) for tower, value in enumerate(values) if value is not None]
    for tower, value in known[1:]:
        if value != known[0][1]:
            raise StrategyError(
                f"tower {tower} has another {what} than tower {known[0][0]}: {value} instead of {known[0][1]}. Give all "
                "towers the same model, and its variables in the same order"
            )


def _mean_pair(place: int, pairs: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    variables = [variable for _, variable in pairs]
    names = [_name(variable) for variable in variables]
    _check_equal(names, f"variable at place {place}")
    return _mean(names[0], [gradient for gradient, _ in pairs]), variables[0]


def _mean(name: str, gradients: Sequence[Any]) -> Any:
    for tower, gradient in enumerate(gradients):
        if gradient is not None and not _is_gradient(gradient):
            raise StrategyError(
                f"tower {tower} has {gradient!r:.80} as the gradient of {name}; give an array, a number or None"
            )
    shapes = [None if gradient is None else np.shape(gradient) for gradient in gradients]
    _check_equal(shapes, f"shape of the gradient of {name}")
    known = [gradient for gradient in gradients if gradient is not None]
    if not known:
        return None
    return sum((_beside(known[0], other) for other in known[1:]), start=known[0]) / len(known)


def _beside(first: Any, other: Any) -> Any:
    """A gradient of another tower, on the device of the first one's."""
    if not all(
        isinstance(each, jax.Array) and not isinstance(each, jax.core.Tracer) for each in (first, other)
    ):
        return other
    return other if other.sharding == first.sharding else jax.device_put(other, first.sharding)
