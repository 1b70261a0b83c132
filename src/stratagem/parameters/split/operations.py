"""The relation of a value to the rows of its leaf, the effect of each operation on it, and the same for some of the rows.

An operation that is not listed here counts as mixing rows: a leaf may be kept whole for nothing, but is
never cut wrongly.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from stratagem.parameters.split.jaxprs import operation, shape_of

Combination: TypeAlias = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Free:
    """A value that does not depend on the leaf's rows: every part of the leaf may compute all of it."""


@dataclass(frozen=True)
class Rows:
    """A value with one slice along `axis` for each row of the leaf, which depends on no other row."""

    axis: int


@dataclass(frozen=True)
class Reduced:
    """A reduction over all rows: `combine` puts it together from those of the parts.

    Anything but the commons may not use it; `reason` names the reduction, for the message that says so.
    """

    combine: Combination
    reason: str


@dataclass(frozen=True)
class Mixed:
    """A value that depends on all rows in some other way; `reason` names the operation."""

    reason: str


State: TypeAlias = Free | Rows | Reduced | Mixed
FREE = Free()


@dataclass(frozen=True)
class Step:
    """An operation that keeps rows apart."""

    outputs: tuple[State, ...]  # how its results lie to the rows
    # For each operand the axis along which it is cut to the part's rows if it is not yet.
    align: tuple[int | None, ...]
    # Returns the parameters that change for a part with this number of rows.
    resized: Callable[[int], dict[str, Any]] = field(default=lambda rows: {})


Rule: TypeAlias = Callable[[JaxprEqn, Sequence[State]], Step | None]

# One number from the numbers at the same place; operands may be scalars, or have axes of length 1.
_ELEMENTWISE = frozenset(
    """
    abs acos acosh add and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz complex
    conj convert_element_type copy cos cosh digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt
    igamma igammac imag integer_pow is_finite le lgamma log log1p logistic lt max min mul ne neg
    nextafter not or polygamma population_count pow real reduce_precision rem round rsqrt select_n
    shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient sub
    tan tanh xor zeta
    """.split()  # noqa: SIM905  a list would take a line for each
)
# Reductions, and the function that puts those of two parts together.
_REDUCTIONS: dict[str, Combination] = {
    "reduce_sum": jnp.add,
    "reduce_max": jnp.maximum,
    "reduce_min": jnp.minimum,
    "reduce_and": jnp.bitwise_and,
    "reduce_or": jnp.bitwise_or,
}


def step_of(equation: JaxprEqn, states: Sequence[State]) -> Step | Mixed:
    """Return what an operation without an inner jaxpr makes of operands of which at least one is not free."""
    name = equation.primitive.name
    for state in states:
        if isinstance(state, Mixed):
            return state
    rule = _elementwise if name in _ELEMENTWISE else _RULES.get(name)
    step = rule(equation, states) if rule else None
    if step is not None:
        return step
    return mixture(equation, states)


def mixture(equation: JaxprEqn, states: Sequence[State]) -> Mixed:
    """Return the state of a result whose operands' rows are mixed, by this operation or before."""
    earlier = [state.reason for state in states if isinstance(state, Mixed | Reduced)]
    return Mixed(earlier[0] if earlier else operation(equation))


def _shape(equation: JaxprEqn, position: int = 0) -> tuple[int, ...]:
    return shape_of(equation.invars[position])


def _axis(state: State) -> int | None:
    return state.axis if isinstance(state, Rows) else None


def _common_axis(states: Sequence[State]) -> int | None:
    """Return the axis of all operands that have rows, if it is the same, and the others are free."""
    axes = {state.axis for state in states if isinstance(state, Rows)}
    clean = all(isinstance(state, Free | Rows) for state in states)
    return axes.pop() if len(axes) == 1 and clean else None


def _elementwise(equation: JaxprEqn, states: Sequence[State]) -> Step | None:
    axis, whole = _common_axis(states), shape_of(equation.outvars[0])
    shapes = [shape_of(atom) for atom in equation.invars]
    if axis is None or any(shape and len(shape) != len(whole) for shape in shapes):
        return None
    # A scalar, or a single row, is the same for all rows.
    align = (axis if shape and shape[axis] == whole[axis] else None for shape in shapes)
    return Step((Rows(axis),), tuple(align))


def _mixing(parameter: str) -> Rule:
    """Return the rule of operations that mix values along the axes that a parameter names, and along no others."""

    def rule(equation: JaxprEqn, states: Sequence[State]) -> Step | None:
        axis, mixed = _common_axis(states), equation.params[parameter]
        if axis is None or axis in (mixed if isinstance(mixed, tuple) else (mixed,)):
            return None
        return Step((Rows(axis),) * len(equation.outvars), (axis,) * len(states))

    return rule


def _removing(parameter: str) -> Rule:
    """Return the rule of operations that remove the axes that a parameter names: by a reduction, or because of length 1."""

    def rule(equation: JaxprEqn, states: Sequence[State]) -> Step | None:
        removed, combine = equation.params[parameter], _REDUCTIONS.get(equation.primitive.name)
        (state,) = states
        if isinstance(state, Reduced):
            return Step((state,), (None,)) if state.combine is combine else None
        axis = _axis(state)
        if axis is None:
            return None
        if axis not in removed:
            return Step((Rows(axis - sum(other < axis for other in removed)),), (axis,))
        return Step((Reduced(combine, operation(equation)),), (axis,)) if combine else None

    return rule


def _of_one(rule: Callable[[JaxprEqn, int], Step | None]) -> Rule:
    """Return the rule of operations of one operand, from a function of its axis of rows."""

    def of_states(equation: JaxprEqn, states: Sequence[State]) -> Step | None:
        axis = _axis(states[0])
        return None if axis is None or len(states) != 1 else rule(equation, axis)

    return of_states


@_of_one
def _broadcast(equation: JaxprEqn, axis: int) -> Step | None:
    shape = tuple(equation.params["shape"])
    place = equation.params["broadcast_dimensions"][axis]
    if shape[place] != _shape(equation)[axis]:
        return None
    return Step((Rows(place),), (axis,), _resized("shape", shape, place))


@_of_one
def _reshape(equation: JaxprEqn, axis: int) -> Step | None:
    shape, sizes = _shape(equation), tuple(equation.params["new_sizes"])
    if equation.params["dimensions"] is not None:
        return None
    around = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    for place, size in enumerate(sizes):
        if (math.prod(sizes[:place]), size, math.prod(sizes[place + 1 :])) == around:
            return Step((Rows(place),), (axis,), _resized("new_sizes", sizes, place))
    return None


@_of_one
def _transpose(equation: JaxprEqn, axis: int) -> Step | None:
    return Step((Rows(equation.params["permutation"].index(axis)),), (axis,))


@_of_one
def _slice(equation: JaxprEqn, axis: int) -> Step | None:
    strides, limits = equation.params["strides"], equation.params["limit_indices"]
    if equation.params["start_indices"][axis] != 0 or limits[axis] != _shape(equation)[axis]:
        return None
    if strides is not None and strides[axis] != 1:
        return None
    return Step((Rows(axis),), (axis,), _resized("limit_indices", tuple(limits), axis))


def _pad(equation: JaxprEqn, states: Sequence[State]) -> Step | None:
    axis = _axis(states[0])
    if axis is None or states[1] != FREE or any(equation.params["padding_config"][axis]):
        return None
    return Step((Rows(axis),), (axis, None))


def _dot(equation: JaxprEqn, states: Sequence[State]) -> Step | None:
    (contracted, batched) = equation.params["dimension_numbers"]
    if not all(isinstance(state, Free | Rows) for state in states):
        return None
    for side in (0, 1):
        axis, other = _axis(states[side]), _axis(states[1 - side])
        if axis is None:
            continue
        for pairs in (contracted, batched):
            if axis in pairs[side]:
                place = tuple(pairs[side]).index(axis)
                partner = pairs[1 - side][place]
                if other is not None and other != partner:
                    return None
                result = Rows(place) if pairs is batched else Reduced(jnp.add, operation(equation))
                return Step((result,), (axis, partner) if side == 0 else (partner, axis))
        if other is not None:
            return None
        return Step((Rows(_free_place(equation, side, axis)),), (axis, None) if side == 0 else (None, axis))
    return None


def _free_place(equation: JaxprEqn, side: int, axis: int) -> int:
    """Return the place of an axis that is neither contracted nor batched in the result of a dot: batch, left, right."""
    (contracted, batched) = equation.params["dimension_numbers"]

    def free(which: int) -> list[int]:
        taken = {*contracted[which], *batched[which]}
        return [place for place in range(len(_shape(equation, which))) if place not in taken]

    left = len(free(0)) if side == 1 else 0
    return len(batched[0]) + left + free(side).index(axis)


def _resized(parameter: str, sizes: tuple[int, ...], place: int) -> Callable[[int], dict[str, Any]]:
    """Return a function that changes a parameter, which lists the sizes of all axes, for a part with fewer rows."""
    return lambda rows: {parameter: (*sizes[:place], rows, *sizes[place + 1 :])}


_RULES: dict[str, Rule] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": _mixing("dimension"),
    "dot_general": _dot,
    "pad": _pad,
    "reshape": _reshape,
    "rev": _mixing("dimensions"),
    "slice": _slice,
    "sort": _mixing("dimension"),
    "split": _mixing("axis"),
    "squeeze": _removing("dimensions"),
    "transpose": _transpose,
    **dict.fromkeys(["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"], _mixing("axis")),
    **dict.fromkeys([*_REDUCTIONS, "reduce_prod", "reduce_xor", "argmax", "argmin"], _removing("axes")),
}
