"""What the `init` of an `EstimatorSpec` may return, and the error that says so."""

from typing import Any

import jax
import jax.numpy as jnp

from stratagem.errors import StrategyError
from stratagem.waist.user_functions import describe


def checked_params(params: Any) -> Any:
    """Parameters as `init` returned them.

    Raises:
        StrategyError: There are none, or some cannot be trained.
    """
    leaves = jax.tree_util.tree_leaves_with_path(params)
    wrong = [
        f"{describe(leaf)} at {jax.tree_util.keystr(path)}"
        for path, leaf in leaves
        if not _is(jnp.inexact, leaf)
    ]
    if wrong or not leaves:
        raise StrategyError(
            f"EstimatorSpec.init returned {wrong[0] if wrong else f'{describe(params)}, which has no array in it'}; give a pytree of "
            "floating-point arrays, which all can be trained"
        )
    return params


def _is(numbers: Any, value: Any) -> bool:
    """Whether a value is an array, or a number, of such numbers."""
    is_array = isinstance(value, float) or hasattr(value, "dtype")
    return is_array and bool(jnp.issubdtype(jnp.result_type(value), numbers))
