"""Finds what leaves share through gradients alone, where to cut it out of the update, and which leaf each slot belongs to.

A value is *common* if it comes from gradients only, of several leaves, and several leaves need it: the global
norm, whether all is finite. What goes into its computation and belongs to one leaf is that leaf's *partial*.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jax.extend.core import Jaxpr, JaxprEqn, Var

from stratagem.parameters.split.jaxprs import (
    Atom,
    backward,
    bits,
    forward,
    listed,
    mask_of,
    operands_of_outputs,
    operation,
    size_of,
    spread,
)
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
    homes = _homes_of_slots(flat, [mask_of(reached, atom) for atom in flat.outputs])
    ends = [(atom, 1 << leaf) for leaf, atom in enumerate(flat.new_leaves)]
    ends += list(zip(flat.new_slots, homes, strict=True))
    users = backward(flat.equations.listed, ends)

    def sources(atom: Atom) -> int:
        """The leaves whose gradients, and nothing else, a value comes from; 0 if there is anything else."""
        mask = mask_of(reached, atom)
        return mask if not mask & ~gradients else 0

    def shared(atom: Atom) -> bool:
        return sources(atom).bit_count() > 1 and mask_of(users, atom).bit_count() > 1

    whole = frozenset(flat.gradients)
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
            if atom not in whole and size_of(atom) < max(2, size_of(flat.gradients[leaf])):
                commons[atom] = None
                partials[leaf][atom] = None

    for equation in flat.equations.listed:
        for var, positions in zip(equation.outvars, operands_of_outputs(equation), strict=True):
            purpose = users.get(var, 0)
            if not purpose:
                continue
            operands = [equation.invars[position] for position in bits(positions)]
            for operand in operands:
                use(operand, var, purpose)
            if shared(var) and not any(map(shared, operands)):
                operations.append(equation)
    for atom, purpose in ends:
        use(atom, None, purpose)
    computed = (var for equation in flat.equations.listed for var in equation.outvars)
    order = {var: place for place, var in enumerate([*flat.inputs, *computed])}
    return Coupling(
        sorted(commons, key=order.__getitem__),
        [sorted(own, key=order.__getitem__) for own in partials],
        operations,
    )


def _homes_of_slots(flat: FlatUpdate, depends: Sequence[int]) -> list[int]:
    """Guess for whom each slot is kept, as bits, before the update is cut; the bit after the last leaf means all of them.

    Only where to cut depends on the guess. A wrong one may cost a cut that would have been possible, never a right
    result: ownership is worked out again, for certain, from what is left after the cut.

    Args:
        flat: The update.
        depends: For each output the inputs that it depends on, as bits in the order of `flat.inputs`.
    """
    count, num_slots = len(flat.leaves), len(flat.slots)
    leaf_bits, everyone = (1 << count) - 1, 1 << count

    def slots_in(mask: int) -> int:
        return mask >> (2 * count) & ((1 << num_slots) - 1)

    homes = _users_of_slots(map(slots_in, depends[:count]), num_slots)
    for slot, output in enumerate(flat.new_slots):
        if homes[slot]:
            continue
        mask = depends[count + slot]
        own = 0
        for other in bits(slots_in(mask)):
            own |= homes[other] if homes[other].bit_count() == 1 else 0
        leaves = mask >> count & leaf_bits
        only = mask & leaf_bits
        own |= only if only.bit_count() == 1 else 0
        homes[slot] = leaves or own or _gradient_of_same_size(flat, output) or everyone
    return homes


def _gradient_of_same_size(flat: FlatUpdate, output: Atom) -> int:
    """The only gradient that is reached through values as large as the slot, if there is just one."""
    size, gradients = size_of(output), 0
    seen: set[Var] = set()
    places = {var: leaf for leaf, var in enumerate(flat.gradients)}
    ahead = [output]
    while ahead and size > 1:
        atom = ahead.pop()
        if not isinstance(atom, Var) or atom in seen or size_of(atom) != size:
            continue
        seen.add(atom)
        if atom in places:
            gradients |= 1 << places[atom]
        elif maker := flat.equations.maker(atom):
            ahead.extend(maker.invars)
    return gradients if gradients.bit_count() == 1 else 0


def owners_of_slots(names: Sequence[str], flat: FlatUpdate, jaxpr: Jaxpr) -> list[int | None] | str:
    """For each slot the leaf that it belongs to; `None` if all servers keep it, and update it alike.

    Args:
        names: The leaves' names.
        flat: The update.
        jaxpr: The same, with what leaves may share already cut out of it.

    Returns:
        The owners; or why leaves cannot be told apart.
    """
    count = len(flat.leaves)
    known = {var: 1 << leaf for vars_ in (flat.leaves, flat.gradients) for leaf, var in enumerate(vars_)}
    known |= {var: 1 << (count + slot) for slot, var in enumerate(flat.slots)}
    reached = forward(jaxpr.eqns, known)
    masks = [mask_of(reached, atom) for atom in jaxpr.outvars]
    of_leaves, of_slots = masks[:count], masks[count:]
    used = [(other, slot) for slot, mask in enumerate(of_slots) for other in bits(mask >> count)]
    # The leaves that each slot comes from, by itself or over the steps through other slots.
    sources = spread([mask & ((1 << count) - 1) for mask in of_slots], used)

    def leaves_in(mask: int) -> int:
        union = mask & ((1 << count) - 1)
        for slot in bits(mask >> count):
            union |= sources[slot]
        return union

    conflicts = [
        mask for leaf, own in enumerate(of_leaves) if (mask := leaves_in(own) | 1 << leaf).bit_count() > 1
    ]
    conflicts += [mask for mask in sources if mask.bit_count() > 1]
    if conflicts:
        together = [names[leaf] for leaf in bits(conflicts[0])]
        meeting = _meeting(jaxpr.eqns, {var: leaves_in(mask) for var, mask in reached.items()})
        where = f" They meet in {operation(meeting)}." if meeting else ""
        return f"the updates of {listed(together)} depend on one another, through more than their gradients.{where}"
    # The leaves that use each slot, by themselves or through other slots; a bit beyond them means all.
    users = _users_of_slots((mask >> count for mask in of_leaves), len(of_slots))
    # A slot of no leaf that no leaf uses (how often something happened) is kept everywhere.
    users = [
        user | (source or (0 if user else 1 << count)) for source, user in zip(sources, users, strict=True)
    ]
    users = spread(users, [(slot, other) for other, slot in used])
    homes = [source or user for source, user in zip(sources, users, strict=True)]
    return [home.bit_length() - 1 if home.bit_count() == 1 and home < 1 << count else None for home in homes]


def _users_of_slots(of_leaves: Iterable[int], num_slots: int) -> list[int]:
    """For each slot the leaves whose update reads it, as bits; from the slots that each leaf's update reads."""
    users = [0] * num_slots
    for leaf, mask in enumerate(of_leaves):
        for slot in bits(mask):
            users[slot] |= 1 << leaf
    return users


def _meeting(equations: Sequence[JaxprEqn], leaves_of: dict[Var, int]) -> JaxprEqn | None:
    """The first operation that brings leaves together."""
    candidates = [
        equation
        for equation in equations
        if any(leaves_of.get(var, 0).bit_count() > 1 for var in equation.outvars)
    ]
    for equation in candidates:
        operands = [leaves_of.get(atom, 0) for atom in equation.invars if isinstance(atom, Var)]
        if all(mask.bit_count() <= 1 for mask in operands):
            return equation
    return candidates[0] if candidates else None
