"""Jaxprs, as this package builds and prunes them: no constants of their own, every value an input."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from jax.extend.core import DebugInfo, Jaxpr, JaxprEqn, Literal, Var, no_effects
from jax.interpreters import partial_eval

from stratagem.errors import StrategyError

Atom: TypeAlias = Var | Literal
"""An operand of an equation: a variable, or a number written into it."""
Constants: TypeAlias = Mapping[Var, Any]
"""The arrays that a traced function closes over."""


def shape_of(atom: Atom) -> tuple[int, ...]:
    """The shape of a value."""
    aval: Any = atom.aval
    return tuple(aval.shape)


def size_of(atom: Atom) -> int:
    """The number of elements of a value."""
    return math.prod(shape_of(atom))


def assembled(inputs: Sequence[Var], outputs: Sequence[Atom], equations: Sequence[JaxprEqn]) -> Jaxpr:
    """A jaxpr from its pieces."""
    return Jaxpr(
        [], list(inputs), list(outputs), list(equations), no_effects, DebugInfo("split", "update", None, None)
    )


def needed(
    inputs: Sequence[Var], outputs: Sequence[Atom], equations: Sequence[JaxprEqn], constants: Constants
) -> tuple[Jaxpr, list[int]]:
    """What of the equations is needed for the outputs, and which of the inputs, by position.

    The pruned jaxpr takes the needed inputs, then the needed constants; positions count through both.
    """
    everything = [*inputs, *constants]
    whole = assembled(everything, outputs, equations)
    pruned, used = partial_eval.dce_jaxpr(whole, [True] * len(outputs))
    positions = [position for position, is_used in enumerate(used) if is_used]
    _check_closed(pruned)
    return pruned, positions


def without(equations: Sequence[JaxprEqn], given: frozenset[Var]) -> list[JaxprEqn]:
    """The equations with the given variables no longer computed by any: they are inputs now."""
    kept = []
    for equation in equations:
        if given.isdisjoint(equation.outvars):
            kept.append(equation)
        else:
            outputs = [Var(var.aval) if var in given else var for var in equation.outvars]
            kept.append(equation.replace(outvars=outputs))
    return kept


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
