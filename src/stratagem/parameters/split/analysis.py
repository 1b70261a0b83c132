"""The entrance: trace an update once, and work out how it can be cut and which leaf each slot belongs to.

A value is *common* if it comes from gradients only, of several leaves, and several leaves need it: the global
norm, whether all is finite. What goes into its computation and belongs to one leaf is that leaf's *partial*.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, Var

from stratagem.errors import StrategyError
from stratagem.parameters.split.jaxprs import (
    Atom,
    Equations,
    backward,
    bits,
    forward,
    in_words,
    mask_of,
    operands_of_outputs,
    operation,
    size_of,
    spread,
)
from stratagem.parameters.split.operations import FREE, Mixed, Reduced, Rows, State
from stratagem.parameters.split.row_analysis import analyse_rows, input_states, states_of
from stratagem.parameters.split.tracing import FlatUpdate, Update, flatten, trace
from stratagem.parameters.split.update_plan import Partial, Plan


@dataclass(frozen=True)
class Coupling:
    """The values at which an update is cut."""

    commons: list[Var]  # the values that leaves share, in the order in which they are computed
    partials: list[list[Var]]  # for each leaf, its values from which the commons are computed
    operations: list[JaxprEqn]  # the operations in which gradients of several leaves meet for the first time


def couplings(flat: FlatUpdate) -> Coupling:
    """Find the cut through values that come from gradients alone; it is empty if leaves share none."""
    count = len(flat.leaves)
    gradients = (1 << count) - 1
    known = {var: 1 << position for position, var in enumerate(flat.inputs)}
    reached = forward(flat.equations.in_order, known)
    homes = _homes_of_slots(flat, [mask_of(reached, atom) for atom in flat.outputs])
    ends = [(atom, 1 << leaf) for leaf, atom in enumerate(flat.new_leaves)]
    ends += list(zip(flat.new_slots, homes, strict=True))
    users = backward(flat.equations.in_order, ends)

    def sources(atom: Atom) -> int:
        """Return the leaves whose gradients alone a value comes from; 0 if it comes from anything else."""
        mask = mask_of(reached, atom)
        return mask if not mask & ~gradients else 0

    def shared(atom: Atom) -> bool:
        return sources(atom).bit_count() > 1 and mask_of(users, atom).bit_count() > 1

    whole = frozenset(flat.gradients)
    commons: dict[Var, None] = {}
    partials: list[dict[Var, None]] = [{} for _ in range(count)]
    operations = []

    def use(atom: Atom, result: Atom | None, purpose: int) -> None:
        """Note an operand of a result, or an output, that is needed for the leaves of `purpose`."""
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

    for equation in flat.equations.in_order:
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
    computed = (var for equation in flat.equations.in_order for var in equation.outvars)
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
    """Return the only gradient that is reached through values as large as the slot, if there is just one."""
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
    """Return for each slot its leaf, `None` if all servers keep it and update it alike; `jaxpr` is the update without the commons.

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
        return f"the updates of {in_words(together)} depend on one another, through more than their gradients.{where}"
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
    """Return for each slot the leaves whose update reads it, as bits; from the slots that each leaf's update reads."""
    users = [0] * num_slots
    for leaf, mask in enumerate(of_leaves):
        for slot in bits(mask):
            users[slot] |= 1 << leaf
    return users


def _meeting(equations: Sequence[JaxprEqn], leaves_of: dict[Var, int]) -> JaxprEqn | None:
    """Return the first operation that brings leaves together."""
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


MOST_ELEMENTS = 4096
"""The most elements that the partials of one leaf may have together: they travel with every update."""
_WAYS_OUT = (
    "Use one parameter server, an optimizer that treats each variable by itself, or compute what they share from "
    "gradients alone, as optax.clip_by_global_norm does."
)


def analyse(
    update: Update,
    leaves: Sequence[Any],
    slots: Sequence[Any],
    names: Sequence[str] | None = None,
    servers: int | None = None,
) -> Plan:
    """Work out how an update can be cut over servers.

    Nothing is known of the optimizer: all is read from what it computes.

    Example:
        >>> import jax.numpy as jnp
        >>> def momentum(leaves, slots, gradients, step):
        ...     slots = [0.9 * slot + gradient for slot, gradient in zip(slots, gradients)]
        ...     return [leaf - 0.1 * slot for leaf, slot in zip(leaves, slots)], slots
        >>> values = [jnp.zeros((4, 2)), jnp.zeros(2)]
        >>> plan = analyse(momentum, values, values, names=["w", "b"])
        >>> plan.owner_of_slot, plan.rows, plan.couplings
        ((0, 1), (True, True), ())

    Args:
        update: The whole update, `update(leaves, slots, gradients, step) -> (leaves, slots)`.
        leaves: The variables; arrays, or anything with a shape and a dtype. Their gradients are like them.
        slots: All else that lives on: the optimizer's state, moving averages.
        names: The leaves' names, for messages.
        servers: How many servers there are, if known. With one, an update that cannot be cut is kept whole.

    Raises:
        StrategyError: Leaves depend on one another in a way that cannot be cut, and there may be several servers.
    """
    labels = tuple(names) if names is not None else tuple(f"leaf {leaf}" for leaf in range(len(leaves)))
    if len(labels) != len(leaves):
        raise StrategyError(f"there are {len(leaves)} leaves and {len(labels)} names; each leaf has one")
    closed = trace(update, leaves, slots)
    flat = flatten(closed, len(leaves), len(slots))
    outcome = _separate(flat, labels)
    if isinstance(outcome, str):  # it may be that only one side of a branch stands in the way
        outcome = _separate(flatten(closed, len(leaves), len(slots), open_branches=True), labels)
    if isinstance(outcome, Plan):
        return outcome
    if servers != 1:
        raise StrategyError(f"the optimizer cannot be split over parameter servers: {outcome} {_WAYS_OUT}")
    return _inseparable(flat, labels, outcome)


def _separate(flat: FlatUpdate, names: tuple[str, ...]) -> Plan | str:
    """Return the plan; or why there is none."""
    coupling = couplings(flat)
    equations = flat.equations.without(frozenset(coupling.commons))
    local, _ = equations.needed([*flat.inputs, *coupling.commons], flat.outputs)
    owners = owners_of_slots(names, flat, local)
    if isinstance(owners, str):
        return owners
    rows = analyse_rows(flat, owners, local)
    states = _before_partials(flat, coupling, rows.whole_because)
    because = list(rows.whole_because)
    partials: list[tuple[Partial, ...]] = []
    for leaf, vars_ in enumerate(coupling.partials):
        reductions = _reductions(vars_, states, flat.equations) if because[leaf] is None else None
        if isinstance(reductions, str):
            because[leaf] = reductions
        if not isinstance(reductions, list):
            reductions = [Partial(var, None) for var in vars_]
        partials.append(tuple(reductions))
        size = sum(size_of(partial.var) for partial in reductions)
        if size > MOST_ELEMENTS:
            return _too_large(names, leaf, size, coupling)
    return Plan(
        names=names,
        owner_of_slot=tuple(owners),
        whole_because=tuple(because),
        slot_follows_rows=tuple(
            follows and owner is not None and because[owner] is None
            for follows, owner in zip(rows.follows, owners, strict=True)
        ),
        couplings=_described(coupling, [names[leaf] for leaf, of_leaf in enumerate(partials) if of_leaf]),
        inseparable=None,
        _flat=flat,
        _commons=tuple(coupling.commons),
        _partials=tuple(partials),
    )


def _described(coupling: Coupling, sharing: Sequence[str]) -> tuple[str, ...]:
    """Describe in words the values that leaves share."""
    places = dict.fromkeys(operation(equation) for equation in coupling.operations)
    if coupling.commons and not places:
        return (f"gradients of {in_words(sharing)} are used by other variables",)
    return tuple(f"gradients of {in_words(sharing)} meet in {place}" for place in places)


def _inseparable(flat: FlatUpdate, names: tuple[str, ...], reason: str) -> Plan:
    return Plan(
        names=names,
        owner_of_slot=(None,) * len(flat.slots),
        whole_because=("the update cannot be cut at all",) * len(names),
        slot_follows_rows=(False,) * len(flat.slots),
        couplings=(reason,),
        inseparable=reason,
        _flat=flat,
        _commons=(),
        _partials=((),) * len(names),
    )


def _before_partials(
    flat: FlatUpdate, coupling: Coupling, whole_because: Sequence[str | None]
) -> dict[Var, State]:
    """Return how all values that the partials come from lie to rows."""
    frontier = [var for vars_ in coupling.partials for var in vars_]
    jaxpr, _ = flat.equations.needed(flat.gradients, frontier)
    pairs = zip(flat.gradients, whole_because, strict=True)
    return states_of(jaxpr, input_states(jaxpr, {var for var, reason in pairs if reason is None}))[1]


def _reductions(vars_: Sequence[Var], states: dict[Var, State], equations: Equations) -> list[Partial] | str:
    """Return the reductions over rows that values come from, if they come from nothing else; or why not.

    All that lies between the reductions and the values is computed with the commons.
    """
    partials: dict[Var, Partial] = {}
    ahead, seen = list(vars_), set(vars_)
    reason = ""
    while ahead:
        var = ahead.pop(0)
        match states.get(var, FREE):
            case Reduced(combine):
                partials[var] = Partial(var, combine)
            case Mixed(reason):
                maker = equations.maker(var)
                operands = maker.invars if maker else []
                further = [atom for atom in operands if isinstance(atom, Var) and atom not in seen]
                seen.update(further)
                ahead += further
            case Rows():
                return (
                    f"its rows are mixed by {reason}" if reason else "other variables use its rows one by one"
                )
    return list(partials.values())


def _too_large(names: Sequence[str], leaf: int, size: int, coupling: Coupling) -> str:
    where = f" in {operation(coupling.operations[0])}" if coupling.operations else ""
    return (
        f"what variables share{where} is computed from {size} numbers of {names[leaf]!r}; at most {MOST_ELEMENTS} for "
        "each variable can travel with every update: reduce each gradient by itself first."
    )
