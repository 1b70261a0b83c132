"""Finds out, before a loss function is computed, which rows of which tables it will look up.

The function is traced once for every shape of batch. A look-up is an operation of its own in that trace. The part that
computes its ids is extracted to run before the step; in the step, rows that were fetched replace the look-up.
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
_INT64 = np.dtype(np.int64)
_KEEP_NUMBERS = {"convert_element_type", "copy", "squeeze", "expand_dims", "reshape", "broadcast_in_dim"}
"""Operations that leave the numbers of an array and their order as they are, where their count stays the same."""


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
# In a function that differentiates by itself, the gradients of rows are those that arrive at its look-ups. They arrive
# by way of a probe: a number that, as far as derivatives go, is added to all rows of a look-up.
_tangent = _primitive("table_lookup_tangent", _rows_like)
_gradient = _primitive(
    "table_gradient", lambda ids, rows, *, table, dim, dtype: jax.core.ShapedArray((), np.dtype(dtype))
)
_OWN = (_lookup, _tangent, _gradient)


def _batched(arguments: Sequence[Any], dimensions: Sequence[Any], **params: Any) -> tuple[Any, int]:
    ids, *probe = arguments
    return _lookup.bind(jnp.moveaxis(ids, dimensions[0], 0), *probe, **params), 0


def _differentiated(arguments: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    """Rows are constants and ids have no derivatives: only a probe has."""
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
    """Look up rows of a table, in a function that is being traced.

    Args:
        table: The table.
        ids: Integers of any shape.
        probe: A number of the table's type. If the function itself differentiates with respect to it, `TracedLoss`
            learns the gradients of these rows.

    Raises:
        StrategyError: The ids are not integers.
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


class _Rows(dict[str, Callable[[Any], Any]]):
    """The tables, as a loss function sees them during tracing."""

    def __init__(self, tables: Sequence[Table]) -> None:
        super().__init__({table.name: partial(look_up, table) for table in tables})

    def __missing__(self, name: str) -> Callable[[Any], Any]:
        raise StrategyError(
            f"the loss function looks rows up in {name!r}, and init was given the tables {list(self)}: "
            f"give it tables=[..., sg.Table({name!r}, ...)] too"
        )


@dataclass(frozen=True)
class Lookup:
    """One place where a loss function looks rows up.

    Attributes:
        table: The table's name.
        leaf: The number of the batch's leaf that the ids are; `None` if they are computed.
        where: The ids' name in messages.
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
        StrategyError: The rows of a look-up cannot be known beforehand.
    """

    def __init__(self, loss: Loss, tables: Sequence[Table], params: Any, batch: Any) -> None:
        rows = _Rows(tables)
        specs = jax.tree.map(array_spec, (params, batch))

        def traced(params: Any, batch: Any, rng: jax.Array) -> Any:
            return loss(params, batch, rows, rng)

        key = jax.eval_shape(lambda: jax.random.key(0))
        with ids_keep_their_bits():
            closed, shape = jax.make_jaxpr(traced, return_shape=True)(*specs, key)
        self._tree = jax.tree.structure(shape)
        self._jaxpr = _inline_calls(closed)
        paths, _ = jax.tree_util.tree_flatten_with_path(batch)
        names = [f"batch{jax.tree_util.keystr(path)}" for path, _ in paths]
        first = len(jax.tree.leaves(params))
        invars = self._jaxpr.jaxpr.invars
        leaves = {var: place for place, var in enumerate(invars[first : first + len(names)])}
        jaxpr = self._jaxpr.jaxpr
        equations = [each for each in jaxpr.eqns if each.primitive is _lookup]
        gradients = [each for each in jaxpr.eqns if each.primitive is _gradient]
        # Rows that were looked up become inputs, and so do the gradients of probes; the gradients that arrive at look-ups
        # become outputs.
        inputs = [*invars, *(each.outvars[0] for each in (*equations, *gradients))]
        others = [each for each in jaxpr.eqns if each.primitive not in _OWN]
        outvars = [*jaxpr.outvars, *(each.invars[1] for each in gradients)]
        # The names of inputs and outputs, which are for messages, do not fit any more.
        no_names = jaxpr.debug_info.with_unknown_names()
        with_rows = jaxpr.replace(invars=inputs, outvars=outvars, eqns=others, debug_info=no_names)
        self._with_rows = ClosedJaxpr(with_rows, self._jaxpr.consts)
        self._num_lookups = len(equations)
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
        self._ids, self._read = self._compile_ids(computed, first, len(names))

    def _compile_ids(
        self, computed: Sequence[Atom], first: int, leaves: int
    ) -> tuple[Callable[..., Any] | None, list[int]]:
        """Return a function of some leaves of the batch and `rng` that computes ids, and the numbers of these leaves."""
        self.needs_rng = False
        if not computed:
            return None, []
        whole = _part_for(computed, self._jaxpr.jaxpr)
        jaxpr, is_read = pe.dce_jaxpr(whole, [True] * len(computed))
        earlier = next((each for each in jaxpr.eqns if each.primitive is _lookup), None)
        if earlier is not None or any(is_read[:first]):
            source = f"rows of table {earlier.params['table']!r}" if earlier is not None else "parameters"
            tables = ", ".join(sorted({repr(each.table) for each in self.lookups if each.leaf is None}))
            raise StrategyError(
                f"ids of table {tables} depend on {source}: a step has to know its rows before it computes anything; "
                "compute ids from the batch and rng alone"
            )
        read = [place for place, is_one in enumerate(is_read[first : first + leaves]) if is_one]
        self.needs_rng = has_rng = bool(is_read[-1])
        closed = ClosedJaxpr(jaxpr, self._jaxpr.consts)

        def ids(leaves: Sequence[Any], rng: jax.Array) -> list[Any]:
            return list(jaxpr_as_fun(closed)(*leaves, *([rng] if has_rng else [])))

        return jax.jit(ids), read

    def ids(self, batch: Any, rng: Callable[[], jax.Array]) -> list[Array]:
        """Return the ids of every look-up, as 64-bit integers.

        Args:
            batch: The batch, on the host.
            rng: Makes the key of the step.

        Raises:
            DataError: Ids are computed from an id of the batch that does not fit into JAX's integers.
        """
        leaves = jax.tree.leaves(batch)
        computed: Iterator[Any] = iter(())
        if self._ids is not None:
            for place in self._read:
                _check_narrow(leaves[place])
            computed = iter(self._ids([leaves[place] for place in self._read], rng()))
        return [
            _as_int64(next(computed) if each.leaf is None else leaves[each.leaf], each)
            for each in self.lookups
        ]

    def look_up(self, rows: Mapping[str, Any], places: Sequence[Any]) -> list[Any]:
        """Return the rows of every look-up; traceable, and differentiable with respect to rows.

        Args:
            rows: The rows of the batch, by table.
            places: For every look-up, where its rows are among those of its table.
        """
        return [
            jnp.take(rows[each.table], place, axis=0, mode="clip")
            for each, place in zip(self.lookups, places, strict=True)
        ]

    def compute(self, params: Any, batch: Any, rng: jax.Array, rows: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Call the function with the rows of every look-up; traceable.

        Returns:
            What the function returned, and the gradients that arrived at every look-up if it differentiates by itself.
        """
        probes = [jnp.zeros(each.shape, each.dtype) for each in self._probes]
        inputs = *jax.tree.leaves((params, batch)), rng, *rows[: self._num_lookups], *probes
        results = jaxpr_as_fun(self._with_rows)(*inputs)
        gradients = [jnp.zeros_like(each) for each in rows]
        count = len(results) - len(self._gradient_of)
        for number, gradient in zip(self._gradient_of, results[count:], strict=True):
            gradients[number] += gradient
        return jax.tree.unflatten(self._tree, results[:count]), gradients

    def loss(
        self, params: Any, batch: Any, rng: jax.Array, rows: Mapping[str, Any], places: Sequence[Any]
    ) -> Any:
        """Return what the loss function returns, with rows and places as for `look_up`; traceable and differentiable."""
        return self.compute(params, batch, rng, self.look_up(rows, places))[0]


@contextmanager
def ids_keep_their_bits() -> Iterator[None]:
    """Silence JAX's warning of 64-bit integers in the block: ids that are a leaf of the batch are looked up as they are."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Explicitly requested dtype int64", UserWarning)
        yield


def array_spec(leaf: Any) -> jax.ShapeDtypeStruct:
    """Return shape and type of an array or a number, as JAX computes with it."""
    array = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    return jax.ShapeDtypeStruct(array.shape, jax.dtypes.canonicalize_dtype(array.dtype))


def _calls_lookup(equation: JaxprEqn) -> bool:
    """Return whether there is a look-up in what an operation calls, at any depth."""
    return any(
        inner.primitive in _OWN or _calls_lookup(inner)
        for jaxpr in jaxprs_in_params(equation.params)
        for inner in jaxpr.eqns
    )


def _origin(atom: Any, makers: Mapping[Any, JaxprEqn]) -> Any:
    """Return the array that this one is made of by changes of type and shape alone; `None` for a literal."""
    while not isinstance(atom, Literal) and (equation := makers.get(atom)) is not None:
        if equation.primitive.name not in _KEEP_NUMBERS:
            break
        source: Any = equation.invars[0]
        if source.aval.size != atom.aval.size:
            break
        if jnp.issubdtype(atom.aval.dtype, jnp.integer) and atom.aval.dtype not in (np.int32, np.int64):
            break  # this type changes larger numbers
        atom = source
    return None if isinstance(atom, Literal) else atom


def _inline_calls(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Replace calls of functions that look rows up by what these functions do.

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
                arguments: dict[Var, Atom] = dict(zip(inner.jaxpr.invars, operands, strict=True))
                for var, constant in zip(inner.jaxpr.constvars, inner.consts, strict=True):
                    arguments[var] = fresh_constant = Var(var.aval)
                    constants[fresh_constant] = constant
                values.update(zip(equation.outvars, follow(inner.jaxpr, arguments), strict=True))
            else:
                raise StrategyError(
                    f"the loss function looks rows of a table up inside {name}: how often, or whether, is not known before "
                    "the step; look them up outside of it and use the rows inside"
                )
        return [read(atom) for atom in jaxpr.outvars]

    outputs = follow(closed.jaxpr, {})
    jaxpr = closed.jaxpr.replace(constvars=list(constants), eqns=equations, outvars=outputs)
    return ClosedJaxpr(jaxpr, list(constants.values()))


def _part_for(atoms: Sequence[Atom], jaxpr: Jaxpr) -> Jaxpr:
    """Return the part that computes these, without what JAX would keep for its effects, such as `jax.debug.print`."""
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


def _as_int64(ids: Any, lookup: Lookup) -> Array:
    array = np.asarray(ids)
    if array.dtype is _INT64 and array.shape == lookup.shape:
        return array
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise DataError(f"{lookup.where} has the id {array.max()}; ids are signed 64-bit integers")
    return array.astype(_INT64, copy=False).reshape(lookup.shape)
