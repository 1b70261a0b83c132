"""The mean of gradients over towers: copies of one model on several devices, driven by hand."""

from collections.abc import Sequence
from typing import Any

import jax

from stratagem.errors import StrategyError


def average_gradients(tower_grads: Sequence[Any]) -> Any:
    """The mean gradient of each variable over all towers.

    Args:
        tower_grads: One entry per tower: a pytree of gradients, or a list of (gradient, variable), where all
            towers name the same variables (the same objects, or equal names). A gradient that is `None` in a
            tower is left out of the mean; one that is `None` in all stays `None`.

    Returns:
        One entry of the same form; the variables are those of the first tower.

    Example:
        >>> average_gradients([[(1.0, "w")], [(3.0, "w")]])
        [(2.0, 'w')]
    """
    towers = list(tower_grads)
    if not towers:
        raise StrategyError("average_gradients got no tower; give the gradients of one tower at least")
    if _are_pairs(towers):
        return [
            (_mean([gradient for gradient, _ in column]), column[0][1])
            for column in zip(*towers, strict=True)
        ]
    flattened = [jax.tree.flatten(tower, is_leaf=lambda value: value is None) for tower in towers]
    _check_equal([tree for _, tree in flattened], "structure")
    columns = zip(*(leaves for leaves, _ in flattened), strict=True)
    return jax.tree.unflatten(flattened[0][1], [_mean(column) for column in columns])


def _are_pairs(towers: list[Any]) -> bool:
    """Whether these are lists of (gradient, variable), and not pytrees that happen to have pairs in them."""
    if not all(isinstance(tower, list | tuple) and len(tower) == len(towers[0]) > 0 for tower in towers):
        return False
    if not all(isinstance(pair, tuple) and len(pair) == 2 for tower in towers for pair in tower):
        return False
    return all(_are_one([pair[1] for pair in column]) for column in zip(*towers, strict=True))


def _are_one(variables: list[Any]) -> bool:
    first = variables[0]
    return all(other is first or (isinstance(other, str) and other == first) for other in variables)


def _check_equal(values: Sequence[Any], what: str) -> None:
    for number, value in enumerate(values):
        if value != values[0]:
            raise StrategyError(
                f"tower {number} has another {what} than tower 0: {value} instead of {values[0]}"
            )


def _mean(gradients: Sequence[Any]) -> Any:
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
