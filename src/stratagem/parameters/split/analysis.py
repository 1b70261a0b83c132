"""The entrance: traces an update once and works out how it can be cut."""

from collections.abc import Sequence
from typing import Any

from jax.extend.core import Var

from stratagem.errors import StrategyError
from stratagem.parameters.split.coupling import Coupling, couplings
from stratagem.parameters.split.jaxprs import Equations, size_of
from stratagem.parameters.split.ownership import Ownership, owners_of_slots
from stratagem.parameters.split.plan import Partial, Plan
from stratagem.parameters.split.rows import RowAnalysis, analyse_rows, states_of
from stratagem.parameters.split.states import FREE, Mixed, Reduced, Rows, State
from stratagem.parameters.split.tracing import FlatUpdate, Update, flattened, has_branches, traced
from stratagem.parameters.split.wording import listed, operation

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
    gradients: Sequence[Any] | None = None,
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
        leaves: The variables; arrays, or anything with a shape and a dtype.
        slots: All else that lives on: the optimizer's state, moving averages.
        gradients: The gradients; `None` if they are like the leaves.
        names: The leaves' names, for messages.
        servers: How many servers there are, if known. With one, an update that cannot be cut is kept whole.

    Raises:
        StrategyError: Leaves depend on one another in a way that cannot be cut, and there may be several servers.
    """
    gradients = leaves if gradients is None else gradients
    if len(gradients) != len(leaves):
        raise StrategyError(
            f"there are {len(leaves)} leaves and {len(gradients)} gradients; each leaf has one"
        )
    called = tuple(names) if names is not None else tuple(f"leaf {leaf}" for leaf in range(len(leaves)))
    if len(called) != len(leaves):
        raise StrategyError(f"there are {len(leaves)} leaves and {len(called)} names; each leaf has one")
    closed = traced(update, leaves, slots, gradients)
    flat = flattened(closed, len(leaves), len(slots))
    outcome = _cut(flat, called)
    if isinstance(outcome, str) and has_branches(flat):
        outcome = _cut(flattened(closed, len(leaves), len(slots), open_branches=True), called)
    if isinstance(outcome, Plan):
        return outcome
    if servers != 1:
        raise StrategyError(f"the optimizer cannot be split over parameter servers: {outcome} {_WAYS_OUT}")
    return _inseparable(flat, called, outcome)


def _cut(flat: FlatUpdate, names: tuple[str, ...]) -> Plan | str:
    """The plan; or why there is none."""
    coupling = couplings(flat)
    equations = flat.equations.without(frozenset(coupling.commons))
    local, _ = equations.needed([*flat.inputs, *coupling.commons], flat.outputs)
    ownership = owners_of_slots(names, flat.leaves, flat.slots, flat.gradients, local)
    if ownership.conflict is not None:
        return ownership.conflict
    rows = analyse_rows(flat.leaves, flat.slots, flat.gradients, ownership.owners, local)
    states = _before_partials(flat, coupling, rows)
    because = list(rows.whole_because)
    partials: list[tuple[Partial, ...]] = []
    for leaf, vars_ in enumerate(coupling.partials):
        found = _reductions(vars_, states, flat.equations) if because[leaf] is None else None
        if isinstance(found, str):
            because[leaf] = found
        if not isinstance(found, list):
            found = [Partial(var, None) for var in vars_]
        partials.append(tuple(found))
        size = sum(size_of(partial.var) for partial in found)
        if size > MOST_ELEMENTS:
            return _too_large(names, leaf, size, coupling)
    return _plan(flat, names, coupling, ownership, rows, because, partials)


def _plan(
    flat: FlatUpdate,
    names: tuple[str, ...],
    coupling: Coupling,
    ownership: Ownership,
    rows: RowAnalysis,
    because: list[str | None],
    partials: list[tuple[Partial, ...]],
) -> Plan:
    sharing = [names[leaf] for leaf, of_leaf in enumerate(partials) if of_leaf]
    places = dict.fromkeys(operation(equation) for equation in coupling.operations)
    described = [f"gradients of {listed(sharing)} meet in {place}" for place in places]
    if coupling.commons and not described:
        described = [f"gradients of {listed(sharing)} are used by other variables"]
    return Plan(
        names=names,
        owner_of_slot=tuple(ownership.owners),
        whole_because=tuple(because),
        slot_follows_rows=tuple(
            follows and owner is not None and because[owner] is None
            for follows, owner in zip(rows.follows, ownership.owners, strict=True)
        ),
        couplings=tuple(described),
        inseparable=None,
        _flat=flat,
        _commons=tuple(coupling.commons),
        _partials=tuple(partials),
    )


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


def _before_partials(flat: FlatUpdate, coupling: Coupling, rows: RowAnalysis) -> dict[Var, State]:
    """How all that the partials come from lies to rows."""
    frontier = [var for vars_ in coupling.partials for var in vars_]
    jaxpr, _ = flat.equations.needed(flat.gradients, frontier)
    states: dict[Var, State] = {}
    cuttable = {
        gradient
        for gradient, reason in zip(flat.gradients, rows.whole_because, strict=True)
        if reason is None
    }
    states_of(jaxpr, [Rows(0) if var in cuttable else FREE for var in jaxpr.invars], states)
    return states


def _reductions(vars_: Sequence[Var], states: dict[Var, State], equations: Equations) -> list[Partial] | str:
    """The reductions over rows that values come from, and nothing else; or why there are other things.

    All that lies between the reductions and the values is computed with the commons.
    """
    found: dict[Var, Partial] = {}
    ahead, seen = list(vars_), set(vars_)
    reason = ""
    while ahead:
        var = ahead.pop(0)
        match states.get(var, FREE):
            case Reduced(operation=combined):
                found[var] = Partial(var, combined)
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
    return list(found.values())


def _too_large(names: Sequence[str], leaf: int, size: int, coupling: Coupling) -> str:
    where = f" in {operation(coupling.operations[0])}" if coupling.operations else ""
    return (
        f"what variables share{where} is computed from {size} numbers of {names[leaf]!r}; at most {MOST_ELEMENTS} for "
        "each variable can travel with every update: reduce each gradient by itself first."
    )
