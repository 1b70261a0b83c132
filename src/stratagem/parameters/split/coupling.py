"""Finds what leaves share through gradients alone, and where to cut it out of the update.

A value is *common* if it comes from gradients only, of several leaves, and several leaves need it: the global
norm, whether all is finite. What goes into its computation and belongs to one leaf is that leaf's *partial*.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from jax.extend.core import JaxprEqn, Var

from stratagem.parameters.split.homes import homes_of_slots
from stratagem.parameters.split.jaxprs import Atom, size_of
from stratagem.parameters.split.reach import backward, bits, forward, operands_of_outputs
from stratagem.parameters.split.tracing import FlatUpdate


@dataclass(frozen=True)
class Coupling:
    """Where to cut.

    Attributes:
        commons: What leaves share, in the order in which it is computed.
        partials: For each leaf, what of it the commons are computed from.
        operations: The operations in which gradients of several leaves meet for the first time.
    """

    commons: list[Var]
    partials: list[list[Var]]
    operations: list[JaxprEqn]


def couplings(flat: FlatUpdate) -> Coupling:
    """The cut through values that come from gradients alone; empty if leaves share none."""
    count = len(flat.leaves)
    gradients = (1 << count) - 1
    known = {var: 1 << position for position, var in enumerate(flat.inputs)}
    reached = forward(flat.equations.listed, known)
    homes = homes_of_slots(flat, [_mask(reached, atom) for atom in flat.outputs])
    ends = [(atom, 1 << leaf) for leaf, atom in enumerate(flat.new_leaves)]
    ends += list(zip(flat.new_slots, homes, strict=True))
    users = backward(flat.equations.listed, ends)

    def sources(atom: Atom) -> int:
        """The leaves whose gradients, and nothing else, a value comes from; 0 if there is anything else."""
        mask = _mask(reached, atom)
        return mask if not mask & ~gradients else 0

    def shared(atom: Atom) -> bool:
        return sources(atom).bit_count() > 1 and _mask(users, atom).bit_count() > 1

    given = frozenset(flat.gradients)
    commons: dict[Var, None] = {}
    partials: list[dict[Var, None]] = [{} for _ in range(count)]
    operations = []

    def use(atom: Atom, result: Atom | None, purpose: int) -> None:
        """Notes an operand of a result, or an output, that is needed for the leaves of `purpose`."""
        if not isinstance(atom, Var):
            return
        origin = sources(atom)
        if result is not None and shared(result):
            if origin.bit_count() == 1:
                partials[origin.bit_length() - 1][atom] = None
        elif shared(atom):
            commons[atom] = None
        elif origin.bit_count() == 1 and purpose != origin and (result is None or sources(result) != origin):
            # Another leaf, or all of them, use something of this leaf's gradient alone.
            leaf = origin.bit_length() - 1
            if atom not in given and size_of(atom) < max(2, size_of(flat.gradients[leaf])):
                commons[atom] = None
                partials[leaf][atom] = None

    for equation in flat.equations.listed:
        reads = operands_of_outputs(equation)
        everything = (1 << len(equation.invars)) - 1
        for number, var in enumerate(equation.outvars):
            purpose = users.get(var, 0)
            if not purpose:
                continue
            positions = list(bits(everything if reads is None else reads[number]))
            for position in positions:
                use(equation.invars[position], var, purpose)
            if shared(var) and not any(shared(equation.invars[position]) for position in positions):
                operations.append(equation)
    for atom, purpose in ends:
        use(atom, None, purpose)
    order = {var: place for place, var in enumerate(_in_order(flat))}
    return Coupling(
        sorted(commons, key=order.__getitem__),
        [sorted(found, key=order.__getitem__) for found in partials],
        operations,
    )


def _mask(masks: dict[Var, int], atom: Atom) -> int:
    return masks.get(atom, 0) if isinstance(atom, Var) else 0


def _in_order(flat: FlatUpdate) -> Iterable[Var]:
    yield from flat.inputs
    for equation in flat.equations.listed:
        yield from equation.outvars
