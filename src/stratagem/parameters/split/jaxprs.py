"""Equations of a traced function: jaxprs cut out of them, which inputs each value depends on, and their names in messages.

Sets of inputs, and of users, are kept in the bits of integers.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import or_
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
    """The operations of a function, one after the other, and the constants that it closes over."""

    def __init__(self, in_order: Sequence[JaxprEqn], constants: Mapping[Var, Any]) -> None:
        self.in_order = list(in_order)
        self.constants = dict(constants)
        self._makers = {
            var: place for place, equation in enumerate(self.in_order) for var in equation.outvars
        }

    def maker(self, var: Var) -> JaxprEqn | None:
        """Return the equation that computes a value; `None` for an input."""
        place = self._makers.get(var)
        return None if place is None else self.in_order[place]

    def without(self, given: frozenset[Var]) -> "Equations":
        """Return the equations without the computation of some values, which are inputs now."""
        if not given:
            return self
        equations = []
        for equation in self.in_order:
            if not given.isdisjoint(equation.outvars):
                outputs = [Var(var.aval) if var in given else var for var in equation.outvars]
                equation = equation.replace(outvars=outputs)
            equations.append(equation)
        return Equations(equations, self.constants)

    def needed(self, inputs: Sequence[Var], outputs: Sequence[Atom]) -> tuple[Jaxpr, list[int]]:
        """Return the computation of the outputs, and the inputs that it needs, by position.

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
                ahead += self.in_order[place].invars
        return [self.in_order[place] for place in sorted(places)]


def shape_of(atom: Atom) -> tuple[int, ...]:
    """Return the shape of a value."""
    aval: Any = atom.aval
    return tuple(aval.shape)


def size_of(atom: Atom) -> int:
    """Return the number of elements of a value."""
    return math.prod(shape_of(atom))


def operation(equation: JaxprEqn) -> str:
    """Describe an operation: the line of the optimizer or of the user that it comes from, and for which update.

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


def in_words(names: Sequence[str]) -> str:
    """Describe some names, and how many more there are."""
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


# What depends on what.


def bits(mask: int) -> Iterator[int]:
    """Yield the members of a set, in rising order."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def mask_of(masks: Mapping[Var, int], atom: Atom) -> int:
    """Return the set of a value; a number written into an equation has an empty one."""
    return masks.get(atom, 0) if isinstance(atom, Var) else 0


def forward(equations: Sequence[JaxprEqn], known: Mapping[Var, int]) -> dict[Var, int]:
    """Return for each value the union of the sets of its inputs."""
    reached = dict(known)
    for equation in equations:
        masks = [mask_of(reached, atom) for atom in equation.invars]
        for var, positions in zip(equation.outvars, operands_of_outputs(equation), strict=True):
            reached[var] = _union(masks[position] for position in bits(positions))
    return reached


def backward(equations: Sequence[JaxprEqn], known: Sequence[tuple[Atom, int]]) -> dict[Var, int]:
    """Return for each value the union of the sets of its users, given those of the outputs."""
    users: dict[Var, int] = {}

    def use(atom: Atom, mask: int) -> None:
        if isinstance(atom, Var):
            users[atom] = users.get(atom, 0) | mask

    for atom, mask in known:
        use(atom, mask)
    for equation in reversed(equations):
        for var, positions in zip(equation.outvars, operands_of_outputs(equation), strict=True):
            if mask := users.get(var, 0):
                for position in bits(positions):
                    use(equation.invars[position], mask)
    return users


def spread(masks: Sequence[int], edges: Sequence[tuple[int, int]]) -> list[int]:
    """Grow sets, for each edge `(of, into)`, by the members of the first, until nothing changes any more."""
    grown = list(masks)
    while True:
        before = list(grown)
        for of, into in edges:
            grown[into] |= grown[of]
        if grown == before:
            return grown


def operands_of_outputs(equation: JaxprEqn) -> list[int]:
    """Return for each output of an equation the operands that it depends on, as bits.

    Only branches and scans are looked into. A `while` is one: all that it carries decides when it ends.
    """
    match equation.primitive.name:
        case "cond":
            sides = [_of_jaxpr(branch.jaxpr) for branch in equation.params["branches"]]
            # Operand 0 says which branch.
            return [_union(masks) << 1 | 1 for masks in zip(*sides, strict=True)]
        case "scan":
            return _of_scan(equation)
        case _:
            return [(1 << len(equation.invars)) - 1] * len(equation.outvars)


def _of_scan(equation: JaxprEqn) -> list[int]:
    body = _of_jaxpr(equation.params["jaxpr"].jaxpr)
    consts, carried = equation.params["num_consts"], equation.params["num_carry"]
    carry_bits = (1 << carried) - 1
    edges = [(of, into) for into, mask in enumerate(body) for of in bits(mask >> consts & carry_bits)]
    # What is carried also holds its own first value.
    own = [1 << consts + output if output < carried else 0 for output in range(len(body))]
    return spread(list(map(or_, body, own)), edges)


def _of_jaxpr(jaxpr: Jaxpr) -> list[int]:
    reached = forward(jaxpr.eqns, {var: 1 << position for position, var in enumerate(jaxpr.invars)})
    return [mask_of(reached, atom) for atom in jaxpr.outvars]


def _union(masks: Iterable[int]) -> int:
    return reduce(or_, masks, 0)
