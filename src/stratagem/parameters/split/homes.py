"""Guesses for whom each slot is kept, before the update is cut; only where to cut depends on the guess.

A wrong guess may cost a cut that would have been possible, never a right result: ownership is worked out
again, for certain, from what is left after the cut.
"""

from collections.abc import Sequence

from jax.extend.core import Var

from stratagem.parameters.split.jaxprs import Atom, size_of
from stratagem.parameters.split.reach import bits
from stratagem.parameters.split.tracing import FlatUpdate


def homes_of_slots(flat: FlatUpdate, depends: Sequence[int]) -> list[int]:
    """For each slot the leaves that it is kept for, as bits; the bit after the last leaf means all of them.

    Args:
        flat: The update.
        depends: For each output the inputs that it depends on, as bits in the order of `flat.inputs`.
    """
    count, kept = len(flat.leaves), len(flat.slots)
    leaf_bits, everyone = (1 << count) - 1, 1 << count

    def slots_in(mask: int) -> int:
        return mask >> (2 * count) & ((1 << kept) - 1)

    homes = [0] * kept
    for leaf, mask in enumerate(depends[:count]):
        for slot in bits(slots_in(mask)):
            homes[slot] |= 1 << leaf
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
    size, found = size_of(output), 0
    seen: set[Var] = set()
    places = {var: leaf for leaf, var in enumerate(flat.gradients)}
    ahead = [output]
    while ahead and size > 1:
        atom = ahead.pop()
        if not isinstance(atom, Var) or atom in seen or size_of(atom) != size:
            continue
        seen.add(atom)
        if atom in places:
            found |= 1 << places[atom]
        elif maker := flat.equations.maker(atom):
            ahead.extend(maker.invars)
    return found if found.bit_count() == 1 else 0
