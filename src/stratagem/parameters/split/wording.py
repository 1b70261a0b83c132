"""How operations and variables are named in messages."""

from collections.abc import Sequence

from jax._src import source_info_util
from jax.extend.core import JaxprEqn

_SHOWN = 4


def operation(equation: JaxprEqn) -> str:
    """An operation and the line of the optimizer, or of the user, that it comes from."""
    return f"`{equation.primitive.name}` at {source_info_util.summarize(equation.source_info)}"


def listed(names: Sequence[str]) -> str:
    """A few names, and how many more there are."""
    shown = ", ".join(repr(name) for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
