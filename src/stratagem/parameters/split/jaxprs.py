"""Equations of a traced function, jaxprs cut out of them, and how they are named in messages."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from jax._src import source_info_util
from jax.extend.core import DebugInfo, Jaxpr, JaxprEqn, Literal, Var, no_effects
from jax.interpreters import partial_eval

from stratagem.errors import StrategyError

_SHOWN = 4
_PACKAGE = Path(__file__).parents[2]
"""Where our own code is. A folder of the same name further up, such as a user's clone, tells nothing."""
Atom: TypeAlias = Var | Literal
"""An operand of an equation: a variable, or a number written into it."""


class Equations:
    """What a function computes, one operation after the other.

    Args:
        listed: The equations, in order.
        constants: The arrays that the function closes over.
    """

    def __init__(self, listed: Sequence[JaxprEqn], constants: Mapping[Var, Any]) -> None:
        self.listed = list(listed)
        self.constants = dict(constants)
        self._makers = {var: place for place, equation in enumerate(self.listed) for var in equation.outvars}

    def maker(self, var: Var) -> JaxprEqn | None:
        """The equation that computes a value; `None` for an input."""
        place = self._makers.get(var)
        return None if place is None else self.listed[place]

    def without(self, given: frozenset[Var]) -> "Equations":
        """The equations with the given values no longer computed by any: they are inputs now."""
        if not given:
            return self
        equations = []
        for equation in self.listed:
            if not given.isdisjoint(equation.outvars):
                outputs = [Var(var.aval) if var in given else var for var in equation.outvars]
                equation = equation.replace(outvars=outputs)
            equations.append(equation)
        return Equations(equations, self.constants)

    def needed(self, inputs: Sequence[Var], outputs: Sequence[Atom]) -> tuple[Jaxpr, list[int]]:
        """What is needed for the outputs, and which of the inputs, by position.

        The jaxpr takes the needed inputs, then the needed constants; positions count through both.

        Raises:
            StrategyError: The inputs do not suffice.
        """
        whole = Jaxpr(
            [],
            [*inputs, *self.constants],
            list(outputs),
            self._leading_to(outputs),
            no_effects,
            DebugInfo("split", "update", None, None),
        )
        pruned, used = partial_eval.dce_jaxpr(whole, [True] * len(outputs))
        _check_closed(pruned)
        return pruned, [position for position, is_used in enumerate(used) if is_used]

    def _leading_to(self, outputs: Sequence[Atom]) -> list[JaxprEqn]:
        # JAX's elimination walks over all equations it is given, for each of many pieces: so give it few.
        places: set[int] = set()
        ahead = list(outputs)
        while ahead:
            atom = ahead.pop()
            place = self._makers.get(atom) if isinstance(atom, Var) else None
            if place is not None and place not in places:
                places.add(place)
                ahead += self.listed[place].invars
        return [self.listed[place] for place in sorted(places)]


def shape_of(atom: Atom) -> tuple[int, ...]:
    """The shape of a value."""
    aval: Any = atom.aval
    return tuple(aval.shape)


def size_of(atom: Atom) -> int:
    """The number of elements of a value."""
    return math.prod(shape_of(atom))


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


def _check_closed(jaxpr: Jaxpr) -> None:
    known = set(jaxpr.invars)
    for equation in jaxpr.eqns:
        missing = [atom for atom in equation.invars if isinstance(atom, Var) and atom not in known]
        if missing:
            raise StrategyError(
                f"the optimizer's update cannot be cut: {equation.primitive} needs {len(missing)} value(s) that lie "
                "beyond the cut; this is a mistake in the analysis: please report it, and use one parameter server"
            )
        known.update(equation.outvars)
