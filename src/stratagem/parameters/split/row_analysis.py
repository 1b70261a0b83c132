"""Follows the rows of leaves through the update: which leaves may be cut along axis 0, and which slots with them.

Leaves are separate by now, so one pass over the equations serves all of them at once. `evaluate_rows` then carries out
the same equations for some rows of a leaf.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from stratagem.errors import StrategyError
from stratagem.parameters.split.jaxprs import Atom, bits, operands_of_outputs, shape_of
from stratagem.parameters.split.operations import FREE, Mixed, Reduced, Rows, State, mixture, step_of
from stratagem.parameters.split.tracing import FlatUpdate

_CHOICES: tuple[Callable[[Var, Var], bool], ...] = (
    lambda slot, leaf: shape_of(slot)[:1] == shape_of(leaf)[:1],
    lambda slot, leaf: shape_of(slot) == shape_of(leaf),
    lambda slot, leaf: False,
)
"""Which slots are taken to have their leaf's rows. A slot may be as long as its leaf by chance: then another is right."""


@dataclass(frozen=True)
class RowAnalysis:
    """The rows of leaves and slots, as an update treats them."""

    whole_because: list[str | None]  # for each leaf why it must stay whole; `None` if it may be cut
    follows: list[bool]  # for each slot whether it is cut with the rows of its leaf


def analyse_rows(flat: FlatUpdate, owners: Sequence[int | None], jaxpr: Jaxpr) -> RowAnalysis:
    """Look for rows in the update of each leaf.

    A slot of a leaf is taken to have the leaf's rows if it is as long, as long as its update bears that out;
    else each part keeps a copy, which must then not depend on any row.

    Args:
        flat: The update.
        owners: For each slot the leaf that it belongs to.
        jaxpr: The update with what leaves share given; its outputs are the new leaves, then the new slots.
    """
    reasons = [_indivisible(leaf) for leaf in flat.leaves]
    best: dict[int, RowAnalysis] = {}
    for has_rows in _CHOICES:
        follows = [
            owner is not None and reasons[owner] is None and has_rows(slot, flat.leaves[owner])
            for slot, owner in zip(flat.slots, owners, strict=True)
        ]
        settled = _settle(flat, owners, jaxpr, reasons, follows)
        for leaf, reason in enumerate(settled.whole_because):
            if leaf not in best or (reason is None and best[leaf].whole_because[leaf] is not None):
                best[leaf] = settled
        if all(reason is None or reasons[leaf] for leaf, reason in enumerate(settled.whole_because)):
            break
    follows = [owner is not None and best[owner].follows[slot] for slot, owner in enumerate(owners)]
    return _settle(flat, owners, jaxpr, reasons, follows)


def input_states(jaxpr: Jaxpr, with_rows: Container[Var]) -> list[State]:
    """Return how the inputs of a jaxpr lie to rows, of which some have a leaf's rows along axis 0."""
    return [Rows(0) if var in with_rows else FREE for var in jaxpr.invars]


def states_of(jaxpr: Jaxpr, inputs: Sequence[State]) -> tuple[list[State], dict[Var, State]]:
    """Return how the outputs of a jaxpr, and all values in it, lie to rows, given how its inputs do."""
    states: dict[Var, State] = dict(zip(jaxpr.invars, inputs, strict=True))
    for equation in jaxpr.eqns:
        operands = [_state(states, atom) for atom in equation.invars]
        states.update(zip(equation.outvars, _results(equation, operands), strict=True))
    return [_state(states, atom) for atom in jaxpr.outvars], states


def _branch_states(equation: JaxprEqn, operands: Sequence[State]) -> list[State]:
    """Return how the results of a `cond` lie to rows, each of which comes from one of several branches."""
    sides = [states_of(branch.jaxpr, operands[1:])[0] for branch in equation.params["branches"]]
    results: list[State] = []
    for states in zip(*sides, strict=True):
        apart = {state for state in states if state != FREE}
        if len(apart) > 1 or any(isinstance(state, Mixed | Reduced) for state in apart):
            results.append(mixture(equation, states))
        else:
            results.append(apart.pop() if apart else FREE)
    return results


def _results(equation: JaxprEqn, operands: Sequence[State]) -> Sequence[State]:
    if all(state == FREE for state in operands):
        return [FREE] * len(equation.outvars)
    name = equation.primitive.name
    if name == "cond" and operands[0] == FREE:
        return _branch_states(equation, operands)
    if name in {"cond", "scan"}:
        return _mixed_where_used(equation, operands)
    step = step_of(equation, operands)
    return [step] * len(equation.outvars) if isinstance(step, Mixed) else step.outputs


def _mixed_where_used(equation: JaxprEqn, operands: Sequence[State]) -> list[State]:
    results: list[State] = []
    for positions in operands_of_outputs(equation):
        used = [operands[position] for position in bits(positions) if operands[position] != FREE]
        results.append(mixture(equation, used) if used else FREE)
    return results


def _settle(
    flat: FlatUpdate,
    owners: Sequence[int | None],
    jaxpr: Jaxpr,
    indivisible: Sequence[str | None],
    follows: Sequence[bool],
) -> RowAnalysis:
    """Take rows away from slots until the outputs agree with the inputs."""
    follows = list(follows)
    divisible = {
        var
        for reason, *pair in zip(indivisible, flat.leaves, flat.gradients, strict=True)
        if reason is None
        for var in pair
    }
    while True:
        with_rows = divisible.union(slot for slot, has in zip(flat.slots, follows, strict=True) if has)
        outputs, _ = states_of(jaxpr, input_states(jaxpr, with_rows))
        because = [
            reason or _reason_against(state, True)
            for reason, state in zip(indivisible, outputs[: len(indivisible)], strict=True)
        ]
        wrong = []
        for slot, state in enumerate(outputs[len(indivisible) :]):
            owner, reason = owners[slot], _reason_against(state, follows[slot])
            if reason is not None and owner is not None:
                because[owner] = because[owner] or reason
                wrong += [slot] if follows[slot] else []
        if not wrong:
            return RowAnalysis(because, follows)
        for slot in wrong:
            follows[slot] = False


def _reason_against(state: State, has_rows: bool) -> str | None:
    match state:
        case Mixed(reason) | Reduced(_, reason):
            return f"its rows are mixed by {reason}"
        case Rows(axis) if axis != 0 or not has_rows:
            return "its rows end up along another axis, or in a slot that has none of its rows"
    return None


def _indivisible(leaf: Var) -> str | None:
    if not shape_of(leaf):
        return "it is a scalar"
    if shape_of(leaf)[0] < 2:
        return f"it has {shape_of(leaf)[0]} row(s)"
    return None


def _state(known: dict[Var, State], atom: Atom) -> State:
    return FREE if isinstance(atom, Literal) else known.get(atom, FREE)


# Some rows of a leaf.


def evaluate_rows(
    jaxpr: Jaxpr, consts: Sequence[Any], values: Sequence[Any], states: Sequence[State], rows: range
) -> list[tuple[Any, State]]:
    """Compute the outputs of a jaxpr for some rows of a leaf, of which inputs with rows have only those; and their states.

    The equations are those that were analysed, with other sizes: nothing is traced again, so no Python in the
    optimizer can decide differently because a part is smaller.
    """
    known: dict[Var, tuple[Any, State]] = dict(
        zip(jaxpr.invars, zip(values, states, strict=True), strict=True)
    )
    known.update((var, (value, FREE)) for var, value in zip(jaxpr.constvars, consts, strict=True))

    def read(atom: Any) -> tuple[Any, State]:
        return (atom.val, FREE) if isinstance(atom, Literal) else known[atom]

    for equation in jaxpr.eqns:
        operands = [read(atom) for atom in equation.invars]
        with equation.ctx.manager:
            results = _values(equation, operands, rows)
        known.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def align_rows(value: Any, state: State, axis: int | None, rows: range) -> Any:
    """Return a value with the part's rows only along `axis`, whether it had them already or not."""
    if axis is None or isinstance(state, Rows):
        return value
    return jax.lax.slice_in_dim(value, rows.start, rows.stop, axis=axis)


def _values(
    equation: JaxprEqn, operands: Sequence[tuple[Any, State]], rows: range
) -> list[tuple[Any, State]]:
    values, states = [value for value, _ in operands], [state for _, state in operands]
    if all(state == FREE for state in states):
        return [(result, FREE) for result in _bound(equation, values, {})]
    if equation.primitive.name == "cond":
        return _evaluate_branches(equation, values, states, rows)
    step = step_of(equation, states)
    if isinstance(step, Mixed):
        raise StrategyError(
            f"{step.reason} mixes rows, and the leaf is to be cut: cut only leaves that the plan allows to be cut"
        )
    cut = [align_rows(*operand, axis, rows) for operand, axis in zip(operands, step.align, strict=True)]
    return list(zip(_bound(equation, cut, step.resized(len(rows))), step.outputs, strict=True))


def _bound(equation: JaxprEqn, values: Sequence[Any], changes: dict[str, Any]) -> list[Any]:
    params = equation.primitive.get_bind_params({**equation.params, **changes})
    results = equation.primitive.bind(*values, **params)
    return list(results) if equation.primitive.multiple_results else [results]


def _evaluate_branches(
    equation: JaxprEqn, values: Sequence[Any], states: Sequence[State], rows: range
) -> list[tuple[Any, State]]:
    wanted = _branch_states(equation, states)

    def side(branch: ClosedJaxpr) -> Callable[..., list[Any]]:
        def run(*inner: Any) -> list[Any]:
            results = evaluate_rows(branch.jaxpr, branch.consts, inner, states[1:], rows)
            return [
                align_rows(value, state, target.axis if isinstance(target, Rows) else None, rows)
                for (value, state), target in zip(results, wanted, strict=True)
            ]

        return run

    index, *rest = values
    results = jax.lax.switch(index, [side(branch) for branch in equation.params["branches"]], *rest)
    return list(zip(results, wanted, strict=True))
