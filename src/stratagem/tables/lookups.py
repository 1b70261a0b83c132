"""Finds out, before a loss function is computed, which rows of which tables it will look up.

The function is traced once for every shape of batch. A look-up is an operation of its own in that trace: what computes
its ids is cut out of it, and when the trace is computed, the rows that were brought take the place of the look-up.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
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
from jax.interpreters import ad, batching, mlir
from jax.interpreters import partial_eval as pe

from stratagem.errors import DataError, StrategyError
from stratagem.runtime.wire.arrays import Array
from stratagem.tables.table import Table

Atom: TypeAlias = Var | Literal
Loss: TypeAlias = Callable[[Any, Any, Mapping[str, Callable[[Any], Any]], jax.Array], Any]
"""`loss(params, batch, rows, rng)`, in which `rows[name](ids)` looks rows up."""
_CALLS = {"jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint"}
_WIDE = np.dtype(np.int64)
_KEPT = {"convert_element_type", "copy", "squeeze", "expand_dims", "reshape", "broadcast_in_dim"}
"""What leaves the numbers of an array as they are, in their order, where their count stays the same."""


def _rows_like(ids: Any, *_: Any, table: str, dim: int, dtype: str) -> jax.core.ShapedArray:
    return jax.core.ShapedArray((*ids.shape, dim), np.dtype(dtype))


def _never_computed(*_: Any, table: str, **__: Any) -> Any:
    raise StrategyError(
        f"rows of table {table!r} are looked up outside of what a strategy trains or evaluates: make the model in "
        "strategy.scope(), or give it to strategy.adopt(model)"
    )


def _primitive(name: str, abstract: Callable[..., Any]) -> Primitive:
    primitive = Primitive(name)
    primitive.def_abstract_eval(abstract)
    primitive.def_impl(_never_computed)
    mlir.register_lowering(primitive, _never_computed)
    return primitive


_lookup = _primitive("table_lookup", _rows_like)
# Of a function that differentiates by itself, gradients of rows are what comes back to its look-ups. They come to a
# probe, a number that is added to all rows as far as derivatives go.
_tangent = _primitive("table_lookup_tangent", _rows_like)
_gradient = _primitive(
    "table_gradient", lambda ids, rows, *, table, dim, dtype: jax.core.ShapedArray((), np.dtype(dtype))
)
_OWN = (_lookup, _tangent, _gradient)


def _batched(arguments: Sequence[Any], dimensions: Sequence[Any], **params: Any) -> tuple[Any, int]:
    ids, *probe = arguments
    return _lookup.bind(jnp.moveaxis(ids, dimensions[0], 0), *probe, **params), 0


def _differentiated(arguments: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    """Rows are constants, and no id has a derivative: only a probe has."""
    rows = _lookup.bind(*arguments, **params)
    if len(tangents) == 1 or isinstance(tangents[1], ad.Zero):
        return rows, ad.Zero(jax.typeof(rows).to_tangent_aval())
    return rows, _tangent.bind(arguments[0], tangents[1], **params)


def _transposed(rows: Any, ids: Any, _: Any, **params: Any) -> tuple[None, Any]:
    return None, None if isinstance(rows, ad.Zero) else _gradient.bind(ids, rows, **params)


batching.primitive_batchers[_lookup] = _batched
ad.primitive_jvps[_lookup] = _differentiated
ad.primitive_transposes[_tangent] = _transposed


def look_up(table: Table, ids: Any, probe: Any = None) -> Any:
    """Rows of a table, in a function that is being traced.

    Args:
        table: The table.
        ids: Integers of any shape.
        probe: A number of the table's type. A function that differentiates with respect to it, within, lets
            `TracedLoss` know the gradients of these rows.

    Raises:
        StrategyError: The ids are no integers.
    """
    if not isinstance(ids, jax.Array):
        _check_narrow(ids)
    ids = jnp.asarray(ids)
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise StrategyError(
            f"table {table.name!r} was asked for ids of type {ids.dtype}{list(ids.shape)}; ids are integers: cast them "
            "where that is meant"
        )
    probes = () if probe is None else (probe,)
    return _lookup.bind(ids, *probes, table=table.name, dim=table.dim, dtype=table.dtype)


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
        return partial(look_up, table)

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
        shape: The shape of the ids.
    """

    table: str
    leaf: int | None
    where: str
    shape: tuple[int, ...]


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
        with ids_keep_their_bits():
            closed, shape = jax.make_jaxpr(traced, return_shape=True)(*specs, key)
        self._tree = jax.tree.structure(shape)
        self._jaxpr = _with_open_calls(closed)
        paths, _ = jax.tree_util.tree_flatten_with_path(batch)
        names = [f"batch{jax.tree_util.keystr(path)}" for path, _ in paths]
        first = len(jax.tree.leaves(params))
        invars = self._jaxpr.jaxpr.invars
        leaves = {var: place for place, var in enumerate(invars[first : first + len(names)])}
        jaxpr = self._jaxpr.jaxpr
        equations = [each for each in jaxpr.eqns if each.primitive is _lookup]
        gradients = [each for each in jaxpr.eqns if each.primitive is _gradient]
        # What was looked up becomes an input like any other, and so does what came to probes; what came to look-ups
        # becomes an output.
        given = [*invars, *(each.outvars[0] for each in (*equations, *gradients))]
        others = [each for each in jaxpr.eqns if each.primitive not in _OWN]
        outvars = [*jaxpr.outvars, *(each.invars[1] for each in gradients)]
        # The names of inputs and outputs, for messages, are of others now.
        names_lost = jaxpr.debug_info.with_unknown_names()
        with_rows = jaxpr.replace(invars=given, outvars=outvars, eqns=others, debug_info=names_lost)
        self._with_rows = ClosedJaxpr(with_rows, self._jaxpr.consts)
        self._looked_up = len(equations)
        self.lookups: list[Lookup] = []
        computed: list[Atom] = []
        sites: list[tuple[str, Atom]] = []
        makers = {var: each for each in jaxpr.eqns for var in each.outvars}
        for equation in (*equations, *gradients):
            ids, table = equation.invars[0], str(equation.params["table"])
            if equation.primitive is _gradient and (table, ids) in sites:
                continue
            sites.append((table, ids))
            leaf = leaves.get(_origin(ids, makers))
            if leaf is not None and not jnp.issubdtype(invars[first + leaf].aval.dtype, jnp.integer):
                leaf = None
            if leaf is None:
                computed.append(ids)
            where = f"ids computed for table {table!r}" if leaf is None else names[leaf]
            self.lookups.append(Lookup(table, leaf, where, tuple(ids.aval.shape)))
        self._gradient_of = [sites.index((str(each.params["table"]), each.invars[0])) for each in gradients]
        self._probes = [each.outvars[0].aval for each in gradients]
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

    def found(self, rows: Mapping[str, Any], places: Sequence[Any]) -> list[Any]:
        """What every look-up gives; traceable, and differentiable with respect to rows.

        Args:
            rows: Those that were brought, by table.
            places: For every look-up, where its rows are among those of its table.
        """
        return [
            jnp.take(rows[each.table], place, axis=0, mode="clip")
            for each, place in zip(self.lookups, places, strict=True)
        ]

    def computed(
        self, params: Any, batch: Any, rng: jax.Array, found: Sequence[Any]
    ) -> tuple[Any, list[Any]]:
        """What the function returns, and what has come back to every look-up if it differentiates by itself; traceable.

        Args:
            params: The parameters.
            batch: A batch.
            rng: The key.
            found: What every look-up gives.
        """
        probes = [jnp.zeros(each.shape, each.dtype) for each in self._probes]
        given = *jax.tree.leaves((params, batch)), rng, *found[: self._looked_up], *probes
        results = jaxpr_as_fun(self._with_rows)(*given)
        gradients = [jnp.zeros_like(each) for each in found]
        count = len(results) - len(self._gradient_of)
        for number, gradient in zip(self._gradient_of, results[count:], strict=True):
            gradients[number] += gradient
        return jax.tree.unflatten(self._tree, results[:count]), gradients

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
        return self.computed(params, batch, rng, self.found(rows, places))[0]


@contextmanager
def ids_keep_their_bits() -> Iterator[None]:
    """For the block, leave out what JAX says of 64-bit integers: ids that are a leaf of the batch are looked up as they are."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Explicitly requested dtype int64", UserWarning)
        yield


def spec(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape and type of an array or a number, as JAX computes with it."""
    array = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    return jax.ShapeDtypeStruct(array.shape, jax.dtypes.canonicalize_dtype(array.dtype))


def _calls_lookup(equation: JaxprEqn) -> bool:
    """Whether there is a look-up in what an operation calls, at any depth."""
    return any(
        inner.primitive in _OWN or _calls_lookup(inner)
        for jaxpr in jaxprs_in_params(equation.params)
        for inner in jaxpr.eqns
    )


def _origin(atom: Any, makers: Mapping[Any, JaxprEqn]) -> Any:
    """What an array is made of by changes of type and shape alone."""
    while not isinstance(atom, Literal) and (equation := makers.get(atom)) is not None:
        if equation.primitive.name not in _KEPT:
            break
        source: Any = equation.invars[0]
        if source.aval.size != atom.aval.size:
            break
        if jnp.issubdtype(atom.aval.dtype, jnp.integer) and atom.aval.dtype not in (np.int32, np.int64):
            break  # larger numbers would be others in this type
        atom = source
    return None if isinstance(atom, Literal) else atom


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
    if array.dtype is _WIDE and array.shape == lookup.shape:
        return array
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise DataError(f"{lookup.where} has the id {array.max()}; ids are signed 64-bit integers")
    return array.astype(_WIDE, copy=False).reshape(lookup.shape)
