"""Traces an update to one flat list of equations: calls are inlined, branches and loops stay."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxprs_in_params
from jax.extend.core.primitives import select_n_p

from stratagem.errors import StrategyError
from stratagem.parameters.split.jaxprs import Atom, Equations

Update: TypeAlias = Callable[[list[Any], list[Any], list[Any], Any], tuple[list[Any], list[Any]]]
"""`update(leaves, slots, gradients, step) -> (new_leaves, new_slots)`, traceable."""

# Equations that do nothing but call another jaxpr.
_CALLS = {"jit", "call", "closed_call", "remat2", "custom_jvp_call", "custom_vjp_call"}
_BLOCKS = {"cond", "scan", "while"}


@dataclass(frozen=True)
class FlatUpdate:
    """A traced update."""

    leaves: list[Var]  # inputs that stand for the variables
    slots: list[Var]  # inputs that stand for everything else that lives on
    gradients: list[Var]  # inputs that stand for the gradients, one for each leaf
    step: Var  # the input that stands for the number of updates before this one
    equations: Equations
    new_leaves: list[Atom]  # the variables afterwards
    new_slots: list[Atom]  # the slots afterwards

    @property
    def inputs(self) -> list[Var]:
        """All inputs: gradients, leaves, slots, step."""
        return [*self.gradients, *self.leaves, *self.slots, self.step]

    @property
    def outputs(self) -> list[Atom]:
        """All outputs: leaves, then slots."""
        return [*self.new_leaves, *self.new_slots]


def trace(update: Update, leaves: Sequence[Any], slots: Sequence[Any]) -> ClosedJaxpr:
    """Trace the update with JAX, for values of these shapes and dtypes.

    Raises:
        StrategyError: It does not return what it was given, or calls back into Python.
    """
    specs = [[_spec(value) for value in values] for values in (leaves, slots)]
    step = jax.ShapeDtypeStruct((), jnp.int32)
    closed, shapes = jax.make_jaxpr(update, return_shape=True)(*specs, specs[0], step)
    new_leaves, new_slots = (list(values) for values in shapes)
    _check_same("variable", specs[0], new_leaves)
    _check_same("slot", specs[1], new_slots)
    if closed.effects:
        raise StrategyError(
            f"the optimizer's update has effects besides its results ({', '.join(map(str, closed.effects))}), and "
            "servers run no Python: leave out jax.debug.print and callbacks"
        )
    return closed


def flatten(closed: ClosedJaxpr, leaves: int, slots: int, open_branches: bool = False) -> FlatUpdate:
    """Inline all calls of the traced update.

    Args:
        closed: The result of `trace`.
        leaves: The number of leaves.
        slots: The number of slots.
        open_branches: Whether to compute both sides of a `cond` and choose between the results, so that values which
            only one side computes can be cut too. The results are the same.
    """
    flat = _Flat(closed, open_branches)
    inputs, outputs = flat.inputs, flat.outputs
    return FlatUpdate(
        leaves=inputs[:leaves],
        slots=inputs[leaves : leaves + slots],
        gradients=inputs[leaves + slots : -1],
        step=inputs[-1],
        equations=Equations(flat.equations, flat.constants),
        new_leaves=outputs[:leaves],
        new_slots=outputs[leaves:],
    )


class _Flat:
    """A jaxpr with all calls inlined."""

    def __init__(self, closed: ClosedJaxpr, open_branches: bool = False) -> None:
        self._open_branches = open_branches
        self.equations: list[JaxprEqn] = []
        self.constants: dict[Var, Any] = {}
        self.inputs = [Var(var.aval) for var in closed.jaxpr.invars]
        self.outputs = self._inline(closed.jaxpr, closed.consts, self.inputs, None)

    def _inline(
        self, jaxpr: Jaxpr, consts: Sequence[Any], arguments: Sequence[Atom], source: Any
    ) -> list[Atom]:
        """Append a jaxpr's equations; return the atoms of its results."""
        values: dict[Var, Atom] = dict(zip(jaxpr.invars, arguments, strict=True))
        for var, constant in zip(jaxpr.constvars, consts, strict=True):
            values[var] = self._constant(var, constant)

        def read(atom: Atom) -> Atom:
            return atom if isinstance(atom, Literal) else values[atom]

        for equation in jaxpr.eqns:
            operands = [read(atom) for atom in equation.invars]
            # JAX traces a jitted function once: only the outermost call knows the line that this use comes from.
            line = source or equation.source_info
            callee = _callee(equation)
            if callee is not None:
                results = self._inline(callee.jaxpr, callee.consts, operands, line)
            elif self._open_branches and equation.primitive.name == "cond" and not _loops(equation):
                # A loop in a branch may end only when that branch is the one that is meant.
                results = self._opened(equation, operands, source)
            else:
                params = dict(equation.params)
                if equation.primitive.name in _BLOCKS:
                    params = {name: _inlined(value) for name, value in params.items()}
                outputs = [Var(var.aval) for var in equation.outvars]
                self.equations.append(
                    equation.replace(invars=operands, outvars=outputs, params=params, source_info=line)
                )
                results = list(outputs)
            values.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _opened(self, equation: JaxprEqn, operands: list[Atom], source: Any) -> list[Atom]:
        index, *rest = operands
        sides = [self._inline(side.jaxpr, side.consts, rest, source) for side in equation.params["branches"]]
        results: list[Atom] = []
        for var, *choices in zip(equation.outvars, *sides, strict=True):
            result = Var(var.aval)
            self.equations.append(
                equation.replace(
                    primitive=select_n_p,
                    invars=[index, *choices],
                    outvars=[result],
                    params={},
                    source_info=source or equation.source_info,
                )
            )
            results.append(result)
        return results

    def _constant(self, var: Var, value: Any) -> Var:
        for known, other in self.constants.items():
            if other is value:
                return known
        fresh = Var(var.aval)
        self.constants[fresh] = value
        return fresh


def _callee(equation: JaxprEqn) -> ClosedJaxpr | None:
    params = equation.params if equation.primitive.name in _CALLS else {}
    inner = params.get("jaxpr", params.get("call_jaxpr"))
    return ClosedJaxpr(inner, ()) if isinstance(inner, Jaxpr) else inner


def _inlined(value: Any) -> Any:
    """Return a parameter of an equation, with calls inlined in the jaxprs in it."""
    if isinstance(value, tuple):
        return tuple(_inlined(item) for item in value)
    if not isinstance(value, ClosedJaxpr):
        return value
    flat = _Flat(value)
    jaxpr = value.jaxpr.replace(
        constvars=list(flat.constants), invars=flat.inputs, outvars=flat.outputs, eqns=flat.equations
    )
    return ClosedJaxpr(jaxpr, list(flat.constants.values()))


def _loops(equation: JaxprEqn) -> bool:
    return any(
        inner.primitive.name == "while" or _loops(inner)
        for jaxpr in jaxprs_in_params(equation.params)
        for inner in jaxpr.eqns
    )


def _spec(value: Any) -> jax.ShapeDtypeStruct:
    weak = bool(getattr(value, "weak_type", False))
    return jax.ShapeDtypeStruct(tuple(value.shape), value.dtype, weak_type=weak)


def _check_same(what: str, before: Sequence[Any], after: Sequence[Any]) -> None:
    if len(before) != len(after):
        raise StrategyError(
            f"the update takes {len(before)} {what}(s) and returns {len(after)}; it must return each of them, in order"
        )
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise StrategyError(
                f"the update turns {what} {index} from {old.dtype}{list(old.shape)} into {new.dtype}"
                f"{list(new.shape)}; a server keeps shapes and dtypes: cast it back in the optimizer"
            )
