"""Which inputs each value depends on, output by output, as sets kept in the bits of integers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import or_

from jax.extend.core import Jaxpr, JaxprEqn, Var

from stratagem.parameters.split.jaxprs import Atom


def bits(mask: int) -> Iterator[int]:
    """The members of a set, in rising order."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def mask_of(masks: Mapping[Var, int], atom: Atom) -> int:
    """The set of a value; a number written into an equation has an empty one."""
    return masks.get(atom, 0) if isinstance(atom, Var) else 0


def forward(equations: Sequence[JaxprEqn], known: Mapping[Var, int]) -> dict[Var, int]:
    """For each value the union of what its inputs depend on."""
    reached = dict(known)
    for equation in equations:
        masks = [mask_of(reached, atom) for atom in equation.invars]
        for var, positions in zip(equation.outvars, operands_of_outputs(equation), strict=True):
            reached[var] = _union(masks[position] for position in bits(positions))
    return reached


def backward(equations: Sequence[JaxprEqn], known: Sequence[tuple[Atom, int]]) -> dict[Var, int]:
    """For each value the union of what its users are for, given what the outputs are for."""
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
    """Sets that have grown, for each edge `(of, into)`, by what is in the one, until nothing changes any more."""
    grown = list(masks)
    while True:
        before = list(grown)
        for of, into in edges:
            grown[into] |= grown[of]
        if grown == before:
            return grown


def operands_of_outputs(equation: JaxprEqn) -> list[int]:
    """For each output of an equation the operands that it depends on, as bits.

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
