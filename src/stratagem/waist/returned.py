"""What a loss function may return, and the errors that say so.

Checked while JAX traces the function: a step that is compiled pays nothing for it.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.errors import StrategyError
from stratagem.waist.interfaces import Metrics


def checked_loss(returned: Any, name: str = "the loss function") -> tuple[Any, Metrics]:
    """The loss and its metrics, as a loss function returned them; traceable.

    Args:
        returned: What it returned.
        name: What the user knows it as.

    Raises:
        StrategyError: It is something else than a loss, or a loss and a dictionary of metrics.
    """
    is_pair = isinstance(returned, tuple) and len(returned) == 2
    loss, metrics = returned if is_pair else (returned, {})
    if not _is_one(loss, jnp.floating) or not isinstance(metrics, Mapping):
        raise StrategyError(
            f"{name} returned {told(returned)}; give the mean loss over the rows, one floating-point number such as "
            "jnp.mean(losses), or that and a dictionary of metrics: (loss, {'accuracy': accuracy})"
        )
    for metric, value in metrics.items():
        if not isinstance(metric, str) or not _is_one(value, jnp.floating, jnp.integer, jnp.bool_):
            raise StrategyError(
                f"{name} returned the metric {metric!r}: {told(value)}; give each metric a text as its name, and one "
                "number, the mean over the rows: {'accuracy': jnp.mean(hits)}"
            )
    return loss, dict(metrics)


def told(value: object) -> str:
    """What a value is, in words, without what is in it: `(an array float32[16], a dict)`."""
    if value is None:
        return "None"
    if type(value) is tuple:
        return f"({', '.join(map(told, value))})"
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return f"an array {value.dtype}{list(value.shape)}"
    return kind(value)


def kind(value: object) -> str:
    """What a value is, by its type alone: `a list`."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _is_one(value: Any, *kinds: Any) -> bool:
    """Whether a value is one number, of one of these kinds."""
    if isinstance(value, bool | int | float):
        return any(jnp.issubdtype(jnp.result_type(value), kind) for kind in kinds)
    is_array = isinstance(value, jax.Array | np.ndarray | np.generic) or hasattr(value, "__jax_array__")
    return is_array and not value.shape and any(jnp.issubdtype(value.dtype, kind) for kind in kinds)
