"""An optimizer's update of the rows of a table: proved to treat every row by itself, and made into programs over rows."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from stratagem.errors import StrategyError
from stratagem.keep import StoredArray
from stratagem.parameters.split import analyse
from stratagem.tables.row_source import RowSource
from stratagem.tables.row_store import RowSpec
from stratagem.tables.stacks import Stack
from stratagem.tables.table import Table, uniform
from stratagem.tables.table_files import row_form
from stratagem.waist.optimizers import is_optax

_log = logging.getLogger("stratagem")
_TRIED = 8
"""The number of rows that the update is tried and analysed with."""


@dataclass(frozen=True, eq=False)
class RowUpdate:
    """The computations on the rows of a table."""

    table: Table
    optimizer: Any
    slots: tuple[tuple[tuple[int, ...], str], ...]  # shape and type of each slot of one row
    scalars: tuple[Any, ...]  # the first values of the state that all rows share
    # Whether an update with a gradient of zeros would change a row: rows that no batch touches are not updated, so
    # training differs from that of a dense variable.
    is_lazy: bool
    _tree: Any
    _has_rows: tuple[bool, ...]

    def first(self, words: Any) -> tuple[Any, ...]:
        """Draw values and slots of rows that appear, from two words for each; traceable."""
        table = self.table
        initializer = table.initializer or uniform

        def one(key: Any) -> Any:
            return initializer(jax.random.wrap_key_data(key), (table.dim,), jnp.dtype(table.dtype))

        values = jax.vmap(one)(words)
        leaves = jax.tree.leaves(self.optimizer.init(values))
        return values, *(leaf for leaf, has_rows in zip(leaves, self._has_rows, strict=True) if has_rows)

    def update(self, *arrays: Any) -> tuple[Any, ...]:
        """Compute new values, slots and scalars from old ones, gradients and the step; traceable."""
        count = 1 + len(self.slots)
        values, *slots = arrays[:count]
        *scalars, gradients, _ = arrays[count:]
        own, shared = iter(slots), iter(scalars)
        leaves = [next(own if has_rows else shared) for has_rows in self._has_rows]
        updates, state = self.optimizer.update(gradients, jax.tree.unflatten(self._tree, leaves), values)
        pairs = list(zip(jax.tree.leaves(state), self._has_rows, strict=True))
        return (
            (values + updates).astype(values.dtype),
            *(leaf for leaf, has_rows in pairs if has_rows),
            *(leaf for leaf, has_rows in pairs if not has_rows),
        )


def row_update(table: Table, default: Any) -> RowUpdate:
    """Return the update of a table; `default` is the optimizer of one that has none of its own.

    Raises:
        StrategyError: The optimizer is not an optax one, or mixes rows.
    """
    optimizer = default if table.optimizer is None else table.optimizer
    if not is_optax(optimizer):
        raise StrategyError(
            f"the optimizer of table {table.name!r} is {optimizer!r:.80}; give an optax optimizer, such as "
            "sg.Table(..., optimizer=optax.adagrad(0.1))"
        )
    values = jnp.zeros((_TRIED, table.dim), table.dtype)
    state = optimizer.init(values)
    if any(isinstance(each, optax.MultiStepsState) for each in _states(state)):
        raise StrategyError(
            f"the optimizer of table {table.name!r} is optax.MultiSteps, which gathers gradients over steps: a row that no "
            "batch of the last of these touches would never be updated. Give the table another one, or larger batches"
        )
    leaves, tree = jax.tree.flatten(state)
    if any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves):
        raise StrategyError(
            f"the optimizer of table {table.name!r} draws random numbers, which rows cannot share: give the table another one, "
            "such as sg.Table(..., optimizer=optax.adagrad(0.1))"
        )

    def whole(
        variables: list[Any], slots: list[Any], gradients: list[Any], step: Any
    ) -> tuple[list[Any], list[Any]]:
        updates, state = optimizer.update(gradients[0], jax.tree.unflatten(tree, slots), variables[0])
        return [variables[0] + updates], jax.tree.leaves(state)

    plan = analyse(whole, [values], leaves, names=[table.name], servers=1)
    reason = plan.whole_because[0] or plan.inseparable or ", ".join(plan.couplings)
    if reason:
        raise StrategyError(
            f"the optimizer of table {table.name!r} does not treat every row by itself ({reason}), so rows cannot be updated "
            "without the others: give the table another one, such as sg.Table(..., optimizer=optax.adagrad(0.1))"
        )
    has_rows = plan.slot_follows_rows
    kept = list(zip(leaves, has_rows, strict=True))
    update = RowUpdate(
        table,
        optimizer,
        tuple((leaf.shape[1:], str(leaf.dtype)) for leaf, has in kept if has),
        tuple(np.asarray(leaf) for leaf, has in kept if not has),
        False,
        tree,
        has_rows,
    )
    return replace(update, is_lazy=_is_lazy(update))


class PlannedRows(RowSource):
    """The rows of tables, and how they are trained."""

    updates: list[RowUpdate]  # the update of each stack

    @property
    def form(self) -> dict[str, StoredArray]:
        form: dict[str, StoredArray] = {}
        for stack, update in zip(self.stacks, self.updates, strict=True):
            form |= row_form([table.name for table in stack.tables], row_spec(stack, update))
        return form


def row_updates(stacks: Sequence[Stack], optimizer: Any) -> list[RowUpdate]:
    """Return the update of each stack; those that are lazy are named in the log."""
    updates = [row_update(stack.tables[0], optimizer) for stack in stacks]
    lazy = [
        table.name
        for stack, update in zip(stacks, updates, strict=True)
        if update.is_lazy
        for table in stack.tables
    ]
    if lazy:
        _log.info(
            "the optimizer of table %s would also change rows that a batch does not touch; only those that it touches are "
            "updated (lazily), so results differ from those of a dense variable",
            ", ".join(map(repr, lazy)),
        )
    return updates


def row_spec(stack: Stack, update: RowUpdate) -> RowSpec:
    """Describe the arrays that a store keeps for each row of a stack."""
    table = stack.tables[0]
    return RowSpec(
        table.dim,
        table.dtype,
        stack.bound,
        stack.offsets,
        tuple(each.key for each in stack.tables),
        update.slots,
        table.admit_after,
        table.expire_steps,
    )


def _states(state: Any) -> Iterator[Any]:
    """Yield an optimizer's state, and all states in it."""
    yield state
    if isinstance(state, tuple | list):
        for each in state:
            yield from _states(each)


def _is_lazy(update: RowUpdate) -> bool:
    """Return whether rows, after some updates, change with a gradient of zeros."""
    table = update.table
    numbers = np.random.default_rng(0)
    words = numbers.integers(0, 2**32, (_TRIED, 2), np.uint32)
    arrays, scalars = list(jax.jit(update.first)(words)), list(update.scalars)
    count = 1 + len(update.slots)
    compiled: Callable[..., Any] = jax.jit(update.update)
    for step in range(4):
        gradients = numbers.normal(size=(_TRIED, table.dim)) if step < 3 else np.zeros((_TRIED, table.dim))
        before = arrays
        results = compiled(*arrays, *scalars, gradients.astype(table.dtype), np.int32(step))
        arrays, scalars = list(results[:count]), list(results[count:])
    return not all(np.array_equal(old, new) for old, new in zip(before, arrays, strict=True))
