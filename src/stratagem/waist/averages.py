"""Averages that users ask for: of gradients over towers, and of parameters over time."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.errors import StrategyError
from stratagem.waist.loss_functions import leaf_names


def average_gradients(tower_grads: Iterable[Any]) -> Any:
    """Return the mean gradient of each variable over all towers: copies of a model on several devices, driven by hand.

    Args:
        tower_grads: One entry per tower: a pytree of gradients, or a list or iterator of (gradient, variable),
            where all towers have the same variables in the same order (the same objects, or equal names). A gradient
            that is `None` in a tower is left out of the mean; one that is `None` in all stays `None`.

    Returns:
        One entry of the same form, with the variables of the first tower.

    Raises:
        StrategyError: The towers do not fit together, or hold something other than gradients.

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
        return [_mean_pair(number, column) for number, column in enumerate(zip(*towers, strict=True))]
    flattened = [jax.tree.flatten(tower, is_leaf=lambda value: value is None) for tower in towers]
    _check_equal([tree for _, tree in flattened], "structure")
    tree = flattened[0][1]
    columns = zip(leaf_names(tree), *(leaves for leaves, _ in flattened), strict=True)
    return jax.tree.unflatten(tree, [_mean(name, column) for name, *column in columns])


def _are_pairs(towers: list[Any]) -> bool:
    """Return whether these are lists of (gradient, variable), rather than pytrees that happen to have pairs in them."""
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
    """Return what identifies a variable: its name or, if it has none, its type and address.

    Keras's variables are identified by address: they are arrays too, and many of them are called `kernel`.
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


def _mean_pair(number: int, pairs: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    variables = [variable for _, variable in pairs]
    names = [_name(variable) for variable in variables]
    _check_equal(names, f"variable at place {number}")
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
    return sum((_on_device_of(known[0], other) for other in known[1:]), start=known[0]) / len(known)


def _on_device_of(first: Any, other: Any) -> Any:
    """Return a gradient of another tower, on the device of the first tower's."""
    if not all(
        isinstance(each, jax.Array) and not isinstance(each, jax.core.Tracer) for each in (first, other)
    ):
        return other
    return other if other.sharding == first.sharding else jax.device_put(other, first.sharding)


@dataclass(frozen=True)
class ExponentialMovingAverage:
    """Moving averages of parameters (shadows): shadow ← decay · shadow + (1 − decay) · parameter.

    With `num_updates` n the decay starts small: min(decay, (1 + n) / (10 + n)).

    Example:
        >>> ema = ExponentialMovingAverage(0.99)
        >>> shadow = ema.init({"w": jnp.zeros(2)})
        >>> shadow = ema.update(shadow, {"w": jnp.ones(2)}, num_updates=0)
        >>> shadow["w"]
        Array([0.9, 0.9], dtype=float32)
    """

    decay: float

    def __post_init__(self) -> None:
        if not 0 <= self.decay <= 1:
            raise StrategyError(f"the decay of a moving average is between 0 and 1, not {self.decay!r}")

    def init(self, params: Any) -> Any:
        """Return the initial shadows: copies of the parameters."""
        return jax.tree.map(jnp.array, params)

    def update(self, shadow: Any, params: Any, num_updates: Any = None) -> Any:
        """Return the shadows after an update of the parameters."""
        decay: Any = self.decay
        if num_updates is not None:
            updates = jnp.asarray(num_updates, jnp.float32)
            decay = jnp.minimum(self.decay, (1 + updates) / (10 + updates))
        return jax.tree.map(
            lambda old, new: (old - (1 - decay) * (old - new)).astype(old.dtype), shadow, params
        )
