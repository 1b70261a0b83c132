"""Carries out a jaxpr, for all rows of a leaf or for some of them; traceable."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

from stratagem.errors import StrategyError
from stratagem.parameters.split.rows import branch_states
from stratagem.parameters.split.rules import step_of
from stratagem.parameters.split.states import FREE, Mixed, Rows, State


def evaluate(jaxpr: Jaxpr, values: Sequence[Any]) -> list[Any]:
    """The outputs of a jaxpr for these inputs."""
    return list(jaxpr_as_fun(ClosedJaxpr(jaxpr, ()))(*values))


def evaluate_rows(
    jaxpr: Jaxpr, consts: Sequence[Any], values: Sequence[Any], states: Sequence[State], rows: range
) -> list[tuple[Any, State]]:
    """The outputs of a jaxpr for some rows of a leaf, and how they lie to the rows.

    The equations are those that were analysed, with other sizes: nothing is traced again, so no Python in the
    optimizer can decide differently because a part is smaller.

    Args:
        jaxpr: What to compute, written for the whole leaf.
        consts: Its constants.
        values: The inputs; those with rows have only the part's.
        states: How the inputs lie to the rows.
        rows: The part's rows.
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
            results = _results(equation, operands, rows)
        known.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def aligned(value: Any, state: State, axis: int | None, rows: range) -> Any:
    """A value with the part's rows only along `axis`, whether it had them already or not."""
    if axis is None or isinstance(state, Rows):
        return value
    return jax.lax.slice_in_dim(value, rows.start, rows.stop, axis=axis)


def _results(
    equation: JaxprEqn, operands: Sequence[tuple[Any, State]], rows: range
) -> list[tuple[Any, State]]:
    values, states = [value for value, _ in operands], [state for _, state in operands]
    if all(state == FREE for state in states):
        return [(result, FREE) for result in _bound(equation, values, {})]
    if equation.primitive.name == "cond":
        return _branches(equation, values, states, rows)
    step = step_of(equation, states)
    if isinstance(step, Mixed):
        raise StrategyError(
            f"{step.reason} mixes rows, and the leaf is to be cut: cut only leaves that the plan allows to be cut"
        )
    cut = [aligned(*operand, axis, rows) for operand, axis in zip(operands, step.align, strict=True)]
    return list(zip(_bound(equation, cut, step.resized(len(rows))), step.outputs, strict=True))


def _bound(equation: JaxprEqn, values: Sequence[Any], changes: dict[str, Any]) -> list[Any]:
    params = equation.primitive.get_bind_params({**equation.params, **changes})
    results = equation.primitive.bind(*values, **params)
    return list(results) if equation.primitive.multiple_results else [results]


def _branches(
    equation: JaxprEqn, values: Sequence[Any], states: Sequence[State], rows: range
) -> list[tuple[Any, State]]:
    wanted = branch_states(equation, states)

    def side(branch: ClosedJaxpr) -> Callable[..., list[Any]]:
        def run(*inner: Any) -> list[Any]:
            results = evaluate_rows(branch.jaxpr, branch.consts, inner, states[1:], rows)
            return [
                aligned(value, state, target.axis if isinstance(target, Rows) else None, rows)
                for (value, state), target in zip(results, wanted, strict=True)
            ]

        return run

    index, *rest = values
    results = jax.lax.switch(index, [side(branch) for branch in equation.params["branches"]], *rest)
    return list(zip(results, wanted, strict=True))
