"""How operations and variables are named in messages."""

from collections.abc import Sequence
from pathlib import Path

from jax._src import source_info_util
from jax.extend.core import JaxprEqn

_SHOWN = 4
_PACKAGE = Path(__file__).parents[2]
"""Where our own code is. A folder of the same name further up, such as a user's clone, tells nothing."""


def operation(equation: JaxprEqn) -> str:
    """An operation, the line of the optimizer or of the user that it comes from, and for which update.

    The line alone is often in a small function that any optimizer might call, such as a norm.
    """
    text = f"`{equation.primitive.name}` at {source_info_util.summarize(equation.source_info)}"
    frames = list(source_info_util.user_frames(equation.source_info.traceback))
    for frame in frames[1:]:
        if Path(frame.file_name).is_relative_to(_PACKAGE):
            break
        if "update" in frame.function_name:
            return f"{text}, for {frame.function_name}"
    return text


def listed(names: Sequence[str]) -> str:
    """A few names, and how many more there are."""
    shown = ", ".join(repr(name) for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
