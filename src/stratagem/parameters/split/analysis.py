"""The entrance: traces an update once and works out how it can be cut."""

from collections.abc import Sequence
from typing import Any

from jax.extend.core import Var

from stratagem.errors import StrategyError
from stratagem.parameters.split.coupling import Coupling, couplings, owners_of_slots
from stratagem.parameters.split.jaxprs import Equations, listed, operation, size_of
from stratagem.parameters.split.plan import Partial, Plan
from stratagem.parameters.split.rows import analyse_rows, input_states, states_of
from stratagem.parameters.split.rules import FREE, Mixed, Reduced, Rows, State
from stratagem.parameters.split.tracing import FlatUpdate, Update, flattened, traced

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
    """Works out how an update can be cut over servers.

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
    called = tuple(names) if names is not None else tuple(f"leaf {leaf}" for leaf in range(len(leaves)))
    if len(called) != len(leaves):
        raise StrategyError(f"there are {len(leaves)} leaves and {len(called)} names; each leaf has one")
    closed = traced(update, leaves, slots)
    flat = flattened(closed, len(leaves), len(slots))
    outcome = _separate(flat, called)
    if isinstance(outcome, str):  # it may be that only one side of a branch stands in the way
        outcome = _separate(flattened(closed, len(leaves), len(slots), open_branches=True), called)
    if isinstance(outcome, Plan):
        return outcome
    if servers != 1:
        raise StrategyError(f"the optimizer cannot be split over parameter servers: {outcome} {_WAYS_OUT}")
    return _inseparable(flat, called, outcome)


def _separate(flat: FlatUpdate, names: tuple[str, ...]) -> Plan | str:
    """The plan; or why there is none."""
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
    """What leaves share, in words."""
    places = dict.fromkeys(operation(equation) for equation in coupling.operations)
    if coupling.commons and not places:
        return (f"gradients of {listed(sharing)} are used by other variables",)
    return tuple(f"gradients of {listed(sharing)} meet in {place}" for place in places)


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
    """How all that the partials come from lies to rows."""
    frontier = [var for vars_ in coupling.partials for var in vars_]
    jaxpr, _ = flat.equations.needed(flat.gradients, frontier)
    pairs = zip(flat.gradients, whole_because, strict=True)
    return states_of(jaxpr, input_states(jaxpr, {var for var, reason in pairs if reason is None}))[1]


def _reductions(vars_: Sequence[Var], states: dict[Var, State], equations: Equations) -> list[Partial] | str:
    """The reductions over rows that values come from, and nothing else; or why there are other things.

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
