"""Finds out, before a loss function is computed, which rows of which tables it will look up.

The function is traced once for every shape of batch. A look-up is an operation of its own in that trace: what computes
its ids is cut out of it, and when the trace is computed, the rows that were brought take the place of the look-up.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import (
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    Primitive,
    Var,
    jaxpr_as_fun,
    jaxprs_in_params,
)
from jax.interpreters import ad, batching
from jax.interpreters import partial_eval as pe

from stratagem.errors import DataError, StrategyError
from stratagem.runtime.wire.arrays import Array
from stratagem.tables.table import Table

Atom: TypeAlias = Var | Literal
Loss: TypeAlias = Callable[[Any, Any, Mapping[str, Callable[[Any], Any]], jax.Array], Any]
"""`loss(params, batch, rows, rng)`, in which `rows[name](ids)` looks rows up."""
_CALLS = {"jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint"}
_WIDE = np.dtype(np.int64)
_lookup = Primitive("table_lookup")
_lookup.def_abstract_eval(
    lambda ids, *, table, dim, dtype: jax.core.ShapedArray((*ids.shape, dim), np.dtype(dtype))
)


def _batched(arguments: Sequence[Any], dimensions: Sequence[int], **params: Any) -> tuple[Any, int]:
    return _lookup.bind(jnp.moveaxis(arguments[0], dimensions[0], 0), **params), 0


def _differentiated(arguments: Sequence[Any], _: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    """Within a loss function, rows are constants: no id has a derivative."""
    rows = _lookup.bind(*arguments, **params)
    return rows, ad.Zero(jax.typeof(rows).to_tangent_aval())


batching.primitive_batchers[_lookup] = _batched
ad.primitive_jvps[_lookup] = _differentiated


class _Rows(Mapping[str, Callable[[Any], Any]]):
    """The tables, as a loss function sees them while it is traced."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self._tables = {table.name: table for table in tables}

    def __getitem__(self, name: str) -> Callable[[Any], Any]:
        table = self._tables.get(name)
        if table is None:
            raise StrategyError(
                f"the loss function looks rows up in {name!r}, and init was given the tables {list(self._tables)}: "
                f"give it tables=[..., sg.Table({name!r}, ...)] too"
            )

        def look_up(ids: Any) -> Any:
            if not isinstance(ids, jax.Array):
                _check_narrow(ids)
            ids = jnp.asarray(ids)
            if not jnp.issubdtype(ids.dtype, jnp.integer):
                raise StrategyError(
                    f"table {name!r} was asked for ids of type {ids.dtype}{list(ids.shape)}; ids are integers: cast them "
                    "where that is meant"
                )
            return _lookup.bind(ids, table=name, dim=table.dim, dtype=table.dtype)

        return look_up

    def __contains__(self, name: object) -> bool:
        return name in self._tables

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)


@dataclass(frozen=True)
class Lookup:
    """One place where a loss function looks rows up.

    Attributes:
        table: The table's name.
        leaf: Which leaf of the batch the ids are; `None` if they are computed.
        where: What the ids are called in messages.
    """

    table: str
    leaf: int | None
    where: str


class TracedLoss:
    """A loss function over tables, traced for batches of one shape.

    Args:
        loss: The loss function.
        tables: The tables.
        params: The parameters, or their shapes.
        batch: A batch of that shape.

    Attributes:
        lookups: Where rows are looked up, in order.
        needs_rng: Whether ids depend on the key of the step.

    Raises:
        StrategyError: A look-up stands where it cannot be known beforehand.
    """

    def __init__(self, loss: Loss, tables: Sequence[Table], params: Any, batch: Any) -> None:
        rows = _Rows(tables)
        specs = jax.tree.map(spec, (params, batch))

        def traced(params: Any, batch: Any, rng: jax.Array) -> Any:
            return loss(params, batch, rows, rng)

        key = jax.eval_shape(lambda: jax.random.key(0))
        closed, shape = jax.make_jaxpr(traced, return_shape=True)(*specs, key)
        self._tree = jax.tree.structure(shape)
        self._jaxpr = _with_open_calls(closed)
        paths, _ = jax.tree_util.tree_flatten_with_path(batch)
        names = [f"batch{jax.tree_util.keystr(path)}" for path, _ in paths]
        first = len(jax.tree.leaves(params))
        invars = self._jaxpr.jaxpr.invars
        leaves = {var: place for place, var in enumerate(invars[first : first + len(names)])}
        equations = [each for each in self._jaxpr.jaxpr.eqns if each.primitive is _lookup]
        # What was looked up becomes an input like any other.
        given = [*invars, *(equation.outvars[0] for equation in equations)]
        others = [each for each in self._jaxpr.jaxpr.eqns if each.primitive is not _lookup]
        self._with_rows = ClosedJaxpr(
            self._jaxpr.jaxpr.replace(invars=given, eqns=others), self._jaxpr.consts
        )
        self.lookups: list[Lookup] = []
        computed: list[Atom] = []
        for equation in equations:
            ids, table = equation.invars[0], str(equation.params["table"])
            leaf = None if isinstance(ids, Literal) else leaves.get(ids)
            if leaf is None:
                computed.append(ids)
            where = f"ids computed for table {table!r}" if leaf is None else names[leaf]
            self.lookups.append(Lookup(table, leaf, where))
        self._ids, self._read = self._compiled(computed, first, names)

    def _compiled(
        self, computed: Sequence[Atom], first: int, names: Sequence[str]
    ) -> tuple[Callable[..., Any] | None, list[int]]:
        """A function that computes ids of the leaves that it reads and of `rng`, and the places of these."""
        self.needs_rng = False
        if not computed:
            return None, []
        whole = _leading_to(computed, self._jaxpr.jaxpr)
        jaxpr, is_read = pe.dce_jaxpr(whole, [True] * len(computed))
        earlier = next((each for each in jaxpr.eqns if each.primitive is _lookup), None)
        if earlier is not None or any(is_read[:first]):
            source = f"rows of table {earlier.params['table']!r}" if earlier is not None else "parameters"
            tables = ", ".join(sorted({repr(each.table) for each in self.lookups if each.leaf is None}))
            raise StrategyError(
                f"ids of table {tables} depend on {source}: a step has to know its rows before it computes anything; "
                "compute ids from the batch and rng alone"
            )
        read = [place for place, is_one in enumerate(is_read[first : first + len(names)]) if is_one]
        self.needs_rng = has_rng = bool(is_read[-1])
        closed = ClosedJaxpr(jaxpr, self._jaxpr.consts)

        def ids(leaves: Sequence[Any], rng: jax.Array) -> list[Any]:
            return list(jaxpr_as_fun(closed)(*leaves, *([rng] if has_rng else [])))

        return jax.jit(ids), read

    def ids(self, batch: Any, rng: Callable[[], jax.Array]) -> list[Array]:
        """The ids of every look-up, as 64-bit integers.

        Args:
            batch: The batch, on the host.
            rng: Makes the key of the step.

        Raises:
            DataError: An id of the batch would be cut where ids are computed from it.
        """
        leaves = jax.tree.leaves(batch)
        computed: Iterator[Any] = iter(())
        if self._ids is not None:
            for place in self._read:
                _check_narrow(leaves[place])
            computed = iter(self._ids([leaves[place] for place in self._read], rng()))
        return [
            _wide(next(computed) if each.leaf is None else leaves[each.leaf], each) for each in self.lookups
        ]

    def loss(
        self, params: Any, batch: Any, rng: jax.Array, rows: Mapping[str, Any], places: Sequence[Any]
    ) -> Any:
        """What the loss function returns; traceable, and differentiable with respect to parameters and rows.

        Args:
            params: The parameters.
            batch: A batch.
            rng: The key.
            rows: Those that were brought, by table.
            places: For every look-up, where its rows are among those of its table.
        """
        found = [
            jnp.take(rows[each.table], place, axis=0, mode="clip")
            for each, place in zip(self.lookups, places, strict=True)
        ]
        results = jaxpr_as_fun(self._with_rows)(*jax.tree.leaves((params, batch)), rng, *found)
        return jax.tree.unflatten(self._tree, results)


def spec(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape and type of an array or a number, as JAX computes with it."""
    array = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    return jax.ShapeDtypeStruct(array.shape, jax.dtypes.canonicalize_dtype(array.dtype))


def _calls_lookup(equation: JaxprEqn) -> bool:
    """Whether there is a look-up in what an operation calls, at any depth."""
    return any(
        inner.primitive is _lookup or _calls_lookup(inner)
        for jaxpr in jaxprs_in_params(equation.params)
        for inner in jaxpr.eqns
    )


def _with_open_calls(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same, with the calls of functions that look rows up replaced by what these do.

    Raises:
        StrategyError: A look-up is inside a loop or a branch.
    """
    equations: list[JaxprEqn] = []
    constants: dict[Var, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))

    def follow(jaxpr: Jaxpr, values: dict[Var, Atom]) -> list[Atom]:
        def read(atom: Atom) -> Atom:
            return atom if isinstance(atom, Literal) else values.get(atom, atom)

        for equation in jaxpr.eqns:
            operands = [read(atom) for atom in equation.invars]
            name = equation.primitive.name
            if not _calls_lookup(equation):
                fresh = [Var(var.aval) for var in equation.outvars]
                values.update(zip(equation.outvars, fresh, strict=True))
                equations.append(equation.replace(invars=operands, outvars=fresh))
            elif name in _CALLS:
                inner: Any = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
                inner = inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())
                given: dict[Var, Atom] = dict(zip(inner.jaxpr.invars, operands, strict=True))
                for var, constant in zip(inner.jaxpr.constvars, inner.consts, strict=True):
                    given[var] = fresh_constant = Var(var.aval)
                    constants[fresh_constant] = constant
                values.update(zip(equation.outvars, follow(inner.jaxpr, given), strict=True))
            else:
                raise StrategyError(
                    f"the loss function looks rows of a table up inside {name}: how often, or whether, is not known before "
                    "the step; look them up outside of it and use the rows inside"
                )
        return [read(atom) for atom in jaxpr.outvars]

    outputs = follow(closed.jaxpr, {})
    jaxpr = closed.jaxpr.replace(constvars=list(constants), eqns=equations, outvars=outputs)
    return ClosedJaxpr(jaxpr, list(constants.values()))


def _leading_to(atoms: Sequence[Atom], jaxpr: Jaxpr) -> Jaxpr:
    """The part that these are computed by, without what JAX would keep for its effects, such as `jax.debug.print`."""
    needed = {atom for atom in atoms if isinstance(atom, Var)}
    equations = []
    for equation in reversed(jaxpr.eqns):
        if not needed.isdisjoint(equation.outvars):
            equations.append(equation)
            needed.update(atom for atom in equation.invars if isinstance(atom, Var))
    part: Jaxpr = jaxpr.replace(outvars=list(atoms), eqns=equations[::-1])
    return part


def _check_narrow(leaf: Any) -> None:
    array = np.asarray(leaf)
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8 and array.size:
        narrow = np.iinfo(jax.dtypes.canonicalize_dtype(array.dtype))
        for value in (array.max(), array.min()):
            if not narrow.min <= value <= narrow.max:
                raise DataError(
                    f"ids are computed from {value}, and JAX computes with 32 bits: give ids of more as a leaf of the batch, "
                    "and look them up as they are"
                )


def _wide(ids: Any, lookup: Lookup) -> Array:
    array = np.asarray(ids)
    if array.dtype is _WIDE:
        return array
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise DataError(f"{lookup.where} has the id {array.max()}; ids are signed 64-bit integers")
    return array.astype(_WIDE, copy=False)
