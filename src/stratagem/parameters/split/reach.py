"""Which inputs each value depends on, output by output, as sets kept in the bits of integers."""

from collections.abc import Iterator, Mapping, Sequence

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from stratagem.parameters.split.jaxprs import Atom


def bits(mask: int) -> Iterator[int]:
    """The members of a set, in rising order."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def forward(equations: Sequence[JaxprEqn], known: Mapping[Var, int]) -> dict[Var, int]:
    """For each value the union of what its inputs depend on."""
    found = dict(known)
    for equation in equations:
        masks = [0 if isinstance(atom, Literal) else found.get(atom, 0) for atom in equation.invars]
        operands = operands_of_outputs(equation)
        if operands is None:
            union = 0
            for mask in masks:
                union |= mask
            for var in equation.outvars:
                found[var] = union
            continue
        for var, positions in zip(equation.outvars, operands, strict=True):
            union = 0
            for position in bits(positions):
                union |= masks[position]
            found[var] = union
    return found


def backward(equations: Sequence[JaxprEqn], known: Sequence[tuple[Atom, int]]) -> dict[Var, int]:
    """For each value the union of what its users are for, given what the outputs are for."""
    found: dict[Var, int] = {}
    for atom, mask in known:
        if isinstance(atom, Var):
            found[atom] = found.get(atom, 0) | mask
    for equation in reversed(equations):
        operands = operands_of_outputs(equation)
        whole = (1 << len(equation.invars)) - 1
        for number, var in enumerate(equation.outvars):
            mask = found.get(var, 0)
            if not mask:
                continue
            for position in bits(whole if operands is None else operands[number]):
                atom = equation.invars[position]
                if isinstance(atom, Var):
                    found[atom] = found.get(atom, 0) | mask
    return found


def operands_of_outputs(equation: JaxprEqn) -> list[int] | None:
    """For each output of an equation the operands that it depends on, as bits; `None`: all on all.

    Only branches and scans are looked into. A `while` is one: all that it carries decides when it ends.
    """
    match equation.primitive.name:
        case "cond":
            return _of_branches(equation.params["branches"])
        case "scan":
            return _of_scan(equation)
        case _:
            return None


def _of_branches(branches: Sequence[ClosedJaxpr]) -> list[int]:
    sides = [_of_jaxpr(branch.jaxpr) for branch in branches]
    merged = []
    for masks in zip(*sides, strict=True):
        union = 0
        for mask in masks:
            union |= mask
        merged.append(union << 1 | 1)  # operand 0 says which branch
    return merged


def _of_scan(equation: JaxprEqn) -> list[int]:
    body = _of_jaxpr(equation.params["jaxpr"].jaxpr)
    consts, carried = equation.params["num_consts"], equation.params["num_carry"]
    carry_bits = ((1 << carried) - 1) << consts
    while True:
        wider = []
        for mask in body:
            union = mask
            for position in bits(mask & carry_bits):
                union |= body[position - consts]
            wider.append(union)
        # What is carried also holds its own first value.
        wider = [mask | (1 << (consts + k)) if k < carried else mask for k, mask in enumerate(wider)]
        if wider == body:
            return body
        body = wider


def _of_jaxpr(jaxpr: Jaxpr) -> list[int]:
    reached = forward(jaxpr.eqns, {var: 1 << position for position, var in enumerate(jaxpr.invars)})
    return [0 if isinstance(atom, Literal) else reached.get(atom, 0) for atom in jaxpr.outvars]
