"""Follows the rows of leaves through the update: which leaves may be cut along axis 0, and which slots with them.

Leaves are separate by now, so one pass over the equations serves all of them at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from stratagem.parameters.split.jaxprs import Atom, shape_of
from stratagem.parameters.split.reach import bits, operands_of_outputs
from stratagem.parameters.split.rules import step_of
from stratagem.parameters.split.states import FREE, Free, Mixed, Reduced, Rows, State
from stratagem.parameters.split.wording import operation


@dataclass(frozen=True)
class RowAnalysis:
    """What was found about rows.

    Attributes:
        whole_because: For each leaf why it must stay whole; `None` if it may be cut.
        follows: For each slot whether it is cut with the rows of its leaf.
        states: How every value lies to the rows of its leaf.
    """

    whole_because: list[str | None]
    follows: list[bool]
    states: dict[Var, State]


def analyse_rows(
    leaves: Sequence[Var],
    slots: Sequence[Var],
    gradients: Sequence[Var],
    owners: Sequence[int | None],
    jaxpr: Jaxpr,
) -> RowAnalysis:
    """Looks for rows in the update of each leaf.

    A slot of a leaf is taken to have the leaf's rows if it is as long, as long as its update bears that out;
    else each part keeps a copy, which must then not depend on any row.

    Args:
        leaves: The variables.
        slots: The slots.
        gradients: The gradients.
        owners: For each slot the leaf that it belongs to.
        jaxpr: The update; its outputs are the new leaves, then the new slots.
    """
    reasons = [_indivisible(leaf, gradient) for leaf, gradient in zip(leaves, gradients, strict=True)]
    found: dict[int, RowAnalysis] = {}
    # A slot may be as long as its leaf by chance: then another choice of slots with rows may be right.
    for choice in (_as_long, _same_shape, _none):
        follows = [
            owner is not None and reasons[owner] is None and choice(slot, leaves[owner])
            for slot, owner in zip(slots, owners, strict=True)
        ]
        settled = _settled(leaves, slots, gradients, owners, jaxpr, reasons, follows)
        for leaf, reason in enumerate(settled.whole_because):
            if leaf not in found or (reason is None and found[leaf].whole_because[leaf] is not None):
                found[leaf] = settled
        if all(reason is None or reasons[leaf] for leaf, reason in enumerate(settled.whole_because)):
            break
    follows = [owner is not None and found[owner].follows[slot] for slot, owner in enumerate(owners)]
    return _settled(leaves, slots, gradients, owners, jaxpr, reasons, follows)


def states_of(jaxpr: Jaxpr, inputs: Sequence[State], states: dict[Var, State] | None = None) -> list[State]:
    """How the outputs of a jaxpr lie to rows, given how its inputs do; `states` takes what is between."""
    known = {} if states is None else states
    known.update(zip(jaxpr.invars, inputs, strict=True))
    for equation in jaxpr.eqns:
        operands = [_state(known, atom) for atom in equation.invars]
        known.update(zip(equation.outvars, _results(equation, operands), strict=True))
    return [_state(known, atom) for atom in jaxpr.outvars]


def joined(states: Sequence[State], reason: str) -> State:
    """How a value lies to rows that comes from one of several branches."""
    axes = {state.axis for state in states if isinstance(state, Rows)}
    for state in states:
        if isinstance(state, Mixed):
            return state
        if isinstance(state, Reduced):
            return Mixed(state.reason)
    if len(axes) > 1:
        return Mixed(reason)
    return Rows(axes.pop()) if axes else FREE


def branch_states(equation: JaxprEqn, operands: Sequence[State]) -> list[State]:
    """How the results of a `cond` lie to rows."""
    sides = [states_of(branch.jaxpr, operands[1:]) for branch in equation.params["branches"]]
    return [joined(states, operation(equation)) for states in zip(*sides, strict=True)]


def _results(equation: JaxprEqn, operands: Sequence[State]) -> Sequence[State]:
    if all(state is FREE or isinstance(state, Free) for state in operands):
        return [FREE] * len(equation.outvars)
    name = equation.primitive.name
    if name == "cond" and operands[0] == FREE:
        return branch_states(equation, operands)
    if name in {"cond", "scan"}:
        return _mixed_where_used(equation, operands)
    step = step_of(equation, operands)
    return [step] * len(equation.outvars) if isinstance(step, Mixed) else step.outputs


def _mixed_where_used(equation: JaxprEqn, operands: Sequence[State]) -> list[State]:
    results: list[State] = []
    for positions in operands_of_outputs(equation) or []:
        used = [operands[position] for position in bits(positions) if operands[position] != FREE]
        earlier = [state.reason for state in used if isinstance(state, Mixed | Reduced)]
        results.append(Mixed(earlier[0] if earlier else operation(equation)) if used else FREE)
    return results


def _settled(
    leaves: Sequence[Var],
    slots: Sequence[Var],
    gradients: Sequence[Var],
    owners: Sequence[int | None],
    jaxpr: Jaxpr,
    indivisible: Sequence[str | None],
    follows: Sequence[bool],
) -> RowAnalysis:
    """Takes rows away from slots until the outputs agree with the inputs."""
    follows = list(follows)
    while True:
        given: dict[Var, State] = {}
        for reason, pair in zip(indivisible, zip(leaves, gradients, strict=True), strict=True):
            given.update(dict.fromkeys(pair, FREE if reason else Rows(0)))
        given.update((slot, Rows(0) if has else FREE) for slot, has in zip(slots, follows, strict=True))
        states: dict[Var, State] = {}
        outputs = states_of(jaxpr, [given.get(var, FREE) for var in jaxpr.invars], states)
        states = {**given, **states}
        because = [
            reason or _reason_against(state, True)
            for reason, state in zip(indivisible, outputs[: len(leaves)], strict=True)
        ]
        wrong = []
        for slot, state in enumerate(outputs[len(leaves) : len(leaves) + len(slots)]):
            owner, reason = owners[slot], _reason_against(state, follows[slot])
            if reason is not None and owner is not None:
                because[owner] = because[owner] or reason
                wrong += [slot] if follows[slot] else []
        if not wrong:
            return RowAnalysis(because, follows, states)
        for slot in wrong:
            follows[slot] = False


def _reason_against(state: State, has_rows: bool) -> str | None:
    match state:
        case Mixed(reason) | Reduced(_, reason):
            return f"its rows are mixed by {reason}"
        case Rows(axis) if axis != 0 or not has_rows:
            return "its rows end up along another axis, or in a slot that has none of its rows"
    return None


def _indivisible(leaf: Var, gradient: Var) -> str | None:
    if not shape_of(leaf):
        return "it is a scalar"
    if shape_of(leaf)[0] < 2:
        return f"it has {shape_of(leaf)[0]} row(s)"
    if shape_of(gradient)[:1] != shape_of(leaf)[:1]:
        return "its gradient has another number of rows"
    return None


def _as_long(slot: Var, leaf: Var) -> bool:
    return shape_of(slot)[:1] == shape_of(leaf)[:1]


def _same_shape(slot: Var, leaf: Var) -> bool:
    return shape_of(slot) == shape_of(leaf)


def _none(slot: Var, leaf: Var) -> bool:
    return False


def _state(known: dict[Var, State], atom: Atom) -> State:
    return FREE if isinstance(atom, Literal) else known.get(atom, FREE)
