"""What the functions of an `EstimatorSpec` may return, and the errors that say so."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from stratagem.errors import StrategyError
from stratagem.estimator.checks import kind


def checked_params(params: Any) -> Any:
    """Parameters as `init` returned them.

    Raises:
        StrategyError: There are none, or some cannot be trained.
    """
    leaves = jax.tree_util.tree_leaves_with_path(params)
    wrong = [
        f"{_told(leaf)} at {jax.tree_util.keystr(path)}"
        for path, leaf in leaves
        if not _is(jnp.inexact, leaf)
    ]
    if wrong or not leaves:
        raise StrategyError(
            f"EstimatorSpec.init returned {wrong[0] if wrong else f'{kind(params)} without an array'}; give a pytree of "
            "floating-point arrays, which all can be trained"
        )
    return params


def checked_loss(returned: Any) -> tuple[Any, Mapping[str, Any]]:
    """The loss and its metrics, as `loss` returned them; traceable.

    Raises:
        StrategyError: It returned something else.
    """
    is_pair = isinstance(returned, tuple) and len(returned) == 2
    loss, metrics = returned if is_pair else (returned, {})
    if not _is(jnp.floating, loss) or jnp.shape(loss) or not isinstance(metrics, Mapping):
        raise StrategyError(
            f"EstimatorSpec.loss returned {_told(returned)}; give the mean loss over the rows, one floating-point number, "
            "or that and a dictionary of metrics"
        )
    return loss, metrics


def _is(numbers: Any, value: Any) -> bool:
    """Whether a value is an array, or a number, of such numbers."""
    is_array = isinstance(value, float) or hasattr(value, "dtype")
    return is_array and bool(jnp.issubdtype(jnp.result_type(value), numbers))


def _told(value: Any) -> str:
    """What a value is: `(an array float32[], a float)`."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_told, value))})"
    if hasattr(value, "dtype"):
        return f"an array {value.dtype}{list(value.shape)}"
    return kind(value)
