"""The rows of a model's embeddings before, during and after training, and the Keras optimizers that update rows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax

from stratagem import environment
from stratagem.engines.local_tables import LocalRows
from stratagem.errors import StrategyError
from stratagem.keep import map_file, write_shard
from stratagem.keras.embedding import RowLayer, embeddings_of, put_rows, untrained_rows
from stratagem.strategies.base import Strategy
from stratagem.tables.row_source import RowSource, read_exported_rows
from stratagem.tables.row_store import RowScalar
from stratagem.tables.table import Table, check_tables
from stratagem.tables.table_files import NewRows, TableFiles
from stratagem.waist import Arrays

_BROUGHT = "brought the rows of its model"
"""The name of the chief's note that the servers have the rows that its model came with."""
_OF_ANOTHER_TRAINING = (
    "on the parameter servers, from a training before compile was called again or the strategy was closed: save the model "
    "while it trains, and load it for another training"
)
_FROZEN = optax.set_to_zero()
_BUILT_FOR = 8, 9
"""An optimizer is built for these numbers of rows to see which of its variables have one entry for each row."""


class RowOptimizer:
    """A Keras optimizer in optax's form, for matrices of any number of rows.

    Args:
        optimizer: The optimizer.
        dim: How many numbers a row has.
        dtype: Their type.

    Attributes:
        rate: The number of the learning rate among the variables that all rows share; `None` if a schedule gives it.

    Raises:
        StrategyError: The optimizer has state that each row cannot have by itself.
    """

    def __init__(self, optimizer: Any, dim: int, dtype: str) -> None:
        self._kind = type(optimizer)
        self._config = optimizer.get_config()
        self._dim = dim
        self._dtype = dtype
        self._built: dict[int, Any] = {}
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            raise self._refusal("it scales the loss")
        for name in ("use_ema", "gradient_accumulation_steps"):
            if getattr(optimizer, name, None):
                raise self._refusal(f"it has {name}={getattr(optimizer, name)!r}")
        few, more = (self._for(count).variables for count in _BUILT_FOR)
        self._variables: list[tuple[bool, Any]] = []
        self.rate: int | None = None
        shared = 0
        for one, other in zip(few, more, strict=True):
            values = np.asarray(one.value)
            has_rows = one.shape != other.shape
            if has_rows and (one.shape[1:] != other.shape[1:] or (values != values.flat[0]).any()):
                raise self._refusal(f"{one.name} does not begin alike for all rows")
            if not has_rows:
                if one is getattr(self._for(_BUILT_FOR[0]), "_learning_rate", None):
                    self.rate = shared
                shared += 1
            self._variables.append((has_rows, values))

    def _refusal(self, reason: str) -> StrategyError:
        return StrategyError(
            f"{self._kind.__name__} cannot update rows of an embedding one by one ({reason}): give the layer an optimizer of "
            "its own, such as sg.keras.Embedding(..., optimizer=keras.optimizers.Adagrad(0.1))"
        )

    def _for(self, rows: int) -> Any:
        """Return an optimizer that is built for this number of rows."""
        if rows not in self._built:
            with jax.ensure_compile_time_eval():
                optimizer = self._kind.from_config(self._config)
                optimizer.build(
                    [keras.Variable(np.zeros((rows, self._dim), self._dtype), name="rows", dtype=self._dtype)]
                )
            self._built[rows] = optimizer
        return self._built[rows]

    def init(self, values: Any) -> list[Any]:
        """Return the optimizer's variables for these rows; traceable."""
        return [
            jnp.full((len(values), *first.shape[1:]), first.flat[0], first.dtype)
            if has_rows
            else jnp.asarray(first)
            for has_rows, first in self._variables
        ]

    def update(self, gradients: Any, state: list[Any], values: Any) -> tuple[Any, list[Any]]:
        """Return what to add to rows, and the optimizer's variables after that; traceable."""
        new, after = self._for(len(values)).stateless_apply(state, [gradients], [values])
        return new[0] - values, list(after)


class ModelTables:
    """The tables of a model, under the strategy that trains it."""

    def __init__(self, strategy: Strategy, model: Any, layers: Sequence[RowLayer]) -> None:
        self._strategy = strategy
        self._model = model
        self._layers = layers
        self._rates: list[tuple[int, int, int]] = []
        self._held: LocalRows | None = None
        check_tables([layer.table_spec for layer in layers])

    @property
    def _names(self) -> str:
        return ", ".join(repr(layer.name) for layer in self._layers)

    def for_training(self) -> RowSource:
        """Return the rows where the strategy trains them, with the values that they have now.

        Raises:
            StrategyError: The model's optimizer cannot train rows, or they are on servers for another training.
        """
        optimizer = self._model.optimizer
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            raise StrategyError(
                "the model's optimizer scales the loss, and the gradients of rows would stay scaled: compile the model with "
                "auto_scale=False and an optimizer that is not a LossScaleOptimizer"
            )
        shared: dict[Any, RowOptimizer] = {}
        tables = [self._table_to_train(layer, shared) for layer in self._layers]
        source = self._strategy.new_tables(tables, None)
        if not isinstance(source, LocalRows):
            self._hold_rows(tables)
        for number, stack in enumerate(source.stacks):
            row_optimizer = stack.tables[0].optimizer
            if row_optimizer in shared.values() and row_optimizer.rate is not None:
                place = _place(optimizer.variables, optimizer._learning_rate)
                self._rates.append((number, row_optimizer.rate, place))
        self._move(source)
        return source

    def _table_to_train(self, layer: RowLayer, shared: dict[Any, RowOptimizer]) -> Table:
        """Return the table of a layer with its optimizer; tables that are alike share the model's."""
        table, optimizer = layer.table_spec, layer.optimizer
        if not layer.trainable:
            optimizer = _FROZEN
        elif optimizer is None:
            form = table.dim, table.dtype
            if form not in shared:
                shared[form] = RowOptimizer(self._model.optimizer, *form)
            optimizer = shared[form]
        elif isinstance(optimizer, keras.optimizers.Optimizer):
            optimizer = RowOptimizer(optimizer, table.dim, table.dtype)
        return replace(table, optimizer=optimizer)

    def rates(self, optimizer_variables: Mapping[int, Any]) -> list[RowScalar]:
        """Return those of the optimizer's variables, given by place, that updates of rows use too: the learning rate."""
        return [
            RowScalar(stack, scalar, np.asarray(optimizer_variables[place]))
            for stack, scalar, place in self._rates
            if place in optimizer_variables
        ]

    def follow(self, source: RowSource, optimizer_variables: Arrays) -> None:
        """Use the learning rate that the model's optimizer has now for updates of rows in this process."""
        if isinstance(source, LocalRows):
            for stack, scalar, value in self.rates(dict(enumerate(optimizer_variables))):
                source.stores[stack].scalars[scalar] = value

    def for_reading(self) -> RowSource:
        """Return the rows as they are now; before training, in this process."""
        source: RowSource | None = self._layers[0].row_source
        if source is None or any(layer.row_source is not source for layer in self._layers):
            source = untrained_rows([layer.table_spec for layer in self._layers])
            self._move(source)
        return source

    def export(self, path: str) -> None:
        """Write the rows of each table to a file of its own beside a file of weights."""
        self.for_reading()
        for layer in self._layers:
            layer.table().export(_rows_file(path, layer))

    def load(self, path: str, server_model: Any = None) -> None:
        """Replace the rows by those that `export` wrote; on parameter servers, if this is the chief.

        Args:
            path: The file of weights beside which the files of rows are.
            server_model: The model on the servers, while they train it.

        Raises:
            StrategyError: The rows are on servers where the model no longer trains.
            KeepError: A file is missing, or has rows of another kind, or a server cannot read it.
        """
        source = self.for_reading()
        rows = source
        if not isinstance(rows, LocalRows):
            if server_model is None:
                raise StrategyError(f"the rows of {self._names} are {_OF_ANOTHER_TRAINING}")
            if not server_model.is_chief:
                return
            rows = LocalRows([table for stack in source.stacks for table in stack.tables], None)
            for store in rows.stores:
                store.step = server_model.client.step  # rows count as trained at the present step
        for layer in self._layers:
            map_file(_rows_file(path, layer))  # all files must exist before any rows are dropped
        rows.clear()
        for layer in self._layers:
            put_rows(rows, layer.name, read_exported_rows(_rows_file(path, layer), layer.table_spec))
        if rows is not source:
            _send(server_model, rows, None)

    def _move(self, source: RowSource) -> None:
        """Make this the source of all layers' rows; rows in this process are filled with the present values."""
        if isinstance(source, LocalRows):
            for layer in self._layers:
                if layer.row_source is not None:
                    put_rows(source, layer.name, layer.table().items())
        for layer in self._layers:
            layer.set_row_source(source)

    def _hold_rows(self, tables: Sequence[Table]) -> None:
        """Keep the rows that the model came with until `bring` sends them to the servers.

        Raises:
            StrategyError: They are on the servers, for another training.
        """
        views = [layer.table() for layer in self._layers if layer.row_source is not None]
        if not any(len(view) for view in views):
            return
        if not all(isinstance(layer.row_source, LocalRows | None) for layer in self._layers):
            raise StrategyError(f"the rows of {self._names} are {_OF_ANOTHER_TRAINING}")
        self._held = LocalRows(tables, None)
        self._move(self._held)

    def bring(self, server_model: Any, step: int) -> bool:
        """Send the rows that the model came with to the servers, unless these have trained it before.

        Args:
            server_model: The model on the servers.
            step: The servers' step.

        Returns:
            Whether state that was pulled before is outdated.

        Raises:
            KeepError: A server cannot read the file that has the rows.
        """
        rows, self._held = self._held, None
        if step:
            return False
        if not server_model.is_chief:
            return rows is not None and server_model.wait_for_notice(_BROUGHT) is not None
        if rows is not None:
            _send(server_model, rows, 0)
        server_model.post_notice(_BROUGHT, b"")
        return rows is not None


def _send(server_model: Any, rows: LocalRows, step: int | None) -> None:
    """Replace the rows on the servers by these, by way of a file.

    Args:
        server_model: The model on the servers.
        rows: The rows.
        step: The global step to go on from; `None`: the present one.
    """
    with TemporaryDirectory(dir=environment.snapshot_dir()) as directory:
        record = write_shard(directory, "rows", rows.copies(), durable=False)
        no_values = jax.tree.map(lambda _: None, server_model.form)
        server_model.assign(no_values, step, NewRows(TableFiles(Path(directory), step or 0, (record,))))


def _rows_file(path: str, layer: RowLayer) -> str:
    """Return the path of a layer's rows that go with a file of weights."""
    return f"{path}.{layer.name}.safetensors"


def tables_of(strategy: Strategy, model: Any) -> ModelTables | None:
    """Return the tables of a model; `None` if it has none."""
    layers = embeddings_of(model)
    return ModelTables(strategy, model, layers) if layers else None


def _place(variables: Sequence[Any], variable: Any) -> int:
    return next(place for place, each in enumerate(variables) if each is variable)
