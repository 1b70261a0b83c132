"""Works out which leaf each slot belongs to, and refuses updates in which leaves depend on one another."""

from collections.abc import Sequence
from dataclasses import dataclass

from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from stratagem.parameters.split.reach import bits, forward
from stratagem.parameters.split.wording import listed, operation


@dataclass(frozen=True)
class Ownership:
    """Who owns what.

    Attributes:
        owners: For each slot the leaf that it belongs to; `None` if all servers keep it, and update it alike.
        conflict: Why leaves cannot be told apart; `None` if they can.
    """

    owners: list[int | None]
    conflict: str | None


def owners_of_slots(
    names: Sequence[str],
    leaves: Sequence[Var],
    slots: Sequence[Var],
    gradients: Sequence[Var],
    jaxpr: Jaxpr,
) -> Ownership:
    """The owners of slots.

    Args:
        names: The leaves' names.
        leaves: The variables.
        slots: The slots.
        gradients: The gradients.
        jaxpr: The update, with what leaves may share already cut out of it; its outputs are the new leaves,
            then the new slots.
    """
    count = len(leaves)
    known = {var: 1 << leaf for vars_ in (leaves, gradients) for leaf, var in enumerate(vars_)}
    known |= {var: 1 << (count + slot) for slot, var in enumerate(slots)}
    reached = forward(jaxpr.eqns, known)
    masks = [0 if isinstance(atom, Literal) else reached.get(atom, 0) for atom in jaxpr.outvars]
    of_leaves, of_slots = masks[:count], masks[count : count + len(slots)]
    sources = _sources(of_slots, count)

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
        return Ownership(
            [None] * len(slots),
            f"the updates of {listed(together)} depend on one another, through more than their gradients.{where}",
        )
    users = _users(of_leaves, of_slots, sources, count)
    owners: list[int | None] = []
    for source, user in zip(sources, users, strict=True):
        home = source or user
        owners.append(home.bit_length() - 1 if home.bit_count() == 1 and home < 1 << count else None)
    return Ownership(owners, None)


def _sources(of_slots: Sequence[int], count: int) -> list[int]:
    """The leaves that each slot comes from, by itself or over the steps through other slots."""
    sources = [mask & ((1 << count) - 1) for mask in of_slots]
    while True:
        wider = list(sources)
        for slot, mask in enumerate(of_slots):
            for other in bits(mask >> count):
                wider[slot] |= wider[other]
        if wider == sources:
            return sources
        sources = wider


def _users(
    of_leaves: Sequence[int], of_slots: Sequence[int], sources: Sequence[int], count: int
) -> list[int]:
    """The leaves that use each slot, by themselves or through other slots; a bit beyond them means all."""
    users = [0] * len(of_slots)
    for leaf, mask in enumerate(of_leaves):
        for slot in bits(mask >> count):
            users[slot] |= 1 << leaf
    # A slot of no leaf that no leaf uses (how often something happened) is kept everywhere.
    ends = [source or (0 if user else 1 << count) for source, user in zip(sources, users, strict=True)]
    users = [user | end for user, end in zip(users, ends, strict=True)]
    while True:
        wider = list(users)
        for slot, mask in enumerate(of_slots):
            for other in bits(mask >> count):
                wider[other] |= wider[slot]
        if wider == users:
            return users
        users = wider


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
