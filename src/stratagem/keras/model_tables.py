"""The rows of a model's embeddings: where they are before, while and after it is trained."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import keras
import numpy as np
import optax

from stratagem import environment
from stratagem.engines.local_tables import LocalRows, place_rows
from stratagem.engines.replicas import Replicas
from stratagem.errors import StrategyError
from stratagem.keep import map_file, write_shard
from stratagem.keras.embedding import RowLayer, embeddings_of, put_rows, rows_to_read
from stratagem.keras.row_optimizer import RowOptimizer
from stratagem.strategies.base import Strategy
from stratagem.tables.row_function import RowFunction
from stratagem.tables.row_source import RowSource, read_exported_rows
from stratagem.tables.row_store import RowScalar
from stratagem.tables.stacks import pad_rows
from stratagem.tables.table import Table, check_tables
from stratagem.tables.table_files import NewRows, TableFiles
from stratagem.waist import Arrays

_BROUGHT = "brought the rows of its model"
_OF_ANOTHER_TRAINING = (
    "on the parameter servers, from a training before compile was called again or the strategy was closed: save the model "
    "while it trains, and load it for another training"
)
_FROZEN = optax.set_to_zero()


class ModelTables:
    """The tables of a model that has some.

    Args:
        strategy: Trains the model.
        model: The model.
        layers: Its embeddings by row.
    """

    def __init__(self, strategy: Strategy, model: Any, layers: Sequence[RowLayer]) -> None:
        self._strategy = strategy
        self._model = model
        self._layers = layers
        self._rates: list[tuple[int, int, int]] = []
        self._waiting: LocalRows | None = None
        check_tables([layer.described for layer in layers])

    @property
    def _names(self) -> str:
        return ", ".join(repr(layer.name) for layer in self._layers)

    def for_training(self) -> RowSource:
        """The rows, where the strategy trains them, with the values that they have now.

        Raises:
            StrategyError: They cannot be trained so.
        """
        optimizer = self._model.optimizer
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            raise StrategyError(
                "the model's optimizer scales the loss, and the gradients of rows would stay scaled: compile the model with "
                "auto_scale=False and an optimizer that is no LossScaleOptimizer"
            )
        shared: dict[Any, RowOptimizer] = {}
        tables = [self._trained(layer, shared) for layer in self._layers]
        source = self._strategy.new_tables(tables, None)
        if not isinstance(source, LocalRows):
            self._wait_with_rows(tables)
        for number, stack in enumerate(source.stacks):
            row_optimizer = stack.tables[0].optimizer
            if row_optimizer in shared.values() and row_optimizer.rate is not None:
                place = _place(optimizer.variables, optimizer._learning_rate)
                self._rates.append((number, row_optimizer.rate, place))
        self._move(source)
        return source

    def _trained(self, layer: RowLayer, shared: dict[Any, RowOptimizer]) -> Table:
        """The table of a layer, with the optimizer that it is trained with; one for all that are alike."""
        table, optimizer = layer.described, layer.optimizer
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
        """Of some of the optimizer's variables, by place, those that rows are updated with too: the learning rate."""
        return [
            RowScalar(stack, scalar, np.asarray(optimizer_variables[place]))
            for stack, scalar, place in self._rates
            if place in optimizer_variables
        ]

    def follow(self, source: RowSource, optimizer_variables: Arrays) -> None:
        """Let rows that are here be updated with the learning rate that the model's optimizer has now."""
        if isinstance(source, LocalRows):
            for stack, scalar, value in self.rates(dict(enumerate(optimizer_variables))):
                source.stores[stack].scalars[scalar] = value

    def for_reading(self) -> RowSource:
        """The rows as they are now; before training, in this process."""
        source: RowSource | None = self._layers[0].rows_of
        if source is None or any(layer.rows_of is not source for layer in self._layers):
            source = rows_to_read([layer.described for layer in self._layers])
            self._move(source)
        return source

    def export(self, path: str) -> None:
        """Write the rows of each table to a file of its own beside a file of weights."""
        self.for_reading()
        for layer in self._layers:
            layer.table().export(beside(path, layer))

    def load(self, path: str, served: Any = None) -> None:
        """Have the rows that `export` wrote, and no others; on parameter servers, if this is the chief.

        Args:
            path: The file beside which they are.
            served: The model on the servers, while they train it.

        Raises:
            StrategyError: They are on servers where the model does not train any more.
            KeepError: A file is missing, or has rows of another kind, or a server cannot read it.
        """
        source = self.for_reading()
        rows = source
        if not isinstance(rows, LocalRows):
            if served is None:
                raise StrategyError(f"the rows of {self._names} are {_OF_ANOTHER_TRAINING}")
            if not served.is_chief:
                return
            rows = LocalRows([table for stack in source.stacks for table in stack.tables], None)
            for store in rows.stores:
                store.step = served.client.step  # that of which they are as good as trained
        for layer in self._layers:
            map_file(beside(path, layer))  # all are there, before anything is let go of
        rows.clear()
        for layer in self._layers:
            put_rows(rows, layer.name, read_exported_rows(beside(path, layer), layer.described))
        if rows is not source:
            _send(served, rows, None)

    def _move(self, source: RowSource) -> None:
        """Let the rows be there from now on."""
        if isinstance(source, LocalRows):
            for layer in self._layers:
                if layer.rows_of is not None:
                    put_rows(source, layer.name, layer.table().items())
        for layer in self._layers:
            layer.keep_rows_in(source)

    def _wait_with_rows(self, tables: Sequence[Table]) -> None:
        """Hold the rows that the model came with until `bring`.

        Raises:
            StrategyError: They are on the servers, for another training.
        """
        views = [layer.table() for layer in self._layers if layer.rows_of is not None]
        if not any(len(view) for view in views):
            return
        if not all(isinstance(layer.rows_of, LocalRows | None) for layer in self._layers):
            raise StrategyError(f"the rows of {self._names} are {_OF_ANOTHER_TRAINING}")
        self._waiting = LocalRows(tables, None)
        self._move(self._waiting)

    def bring(self, served: Any, step: int) -> bool:
        """Have the servers hold the rows that the model came with, unless they have trained it before.

        Args:
            served: The model on the servers.
            step: The step that they are at.

        Returns:
            Whether what was there before is void: to train on it would be in vain.

        Raises:
            KeepError: A server cannot read the files in which they are given to it.
        """
        waiting, self._waiting = self._waiting, None
        if step:
            return False
        if not served.is_chief:
            return waiting is not None and served.wait_for_notice(_BROUGHT) is not None
        if waiting is not None:
            _send(served, waiting, 0)
        served.post_notice(_BROUGHT, b"")
        return waiting is not None


def _send(served: Any, rows: LocalRows, step: int | None) -> None:
    """Have the servers hold these rows and no others, by way of a file.

    Args:
        served: The model on the servers.
        rows: The rows.
        step: The global step from which training goes on; `None`: it goes on as it is.
    """
    with TemporaryDirectory(dir=environment.snapshot_dir()) as directory:
        record = write_shard(directory, "rows", rows.copies(), durable=False)
        rows_alone = jax.tree.map(lambda _: None, served.form)
        served.assign(rows_alone, step, NewRows(TableFiles(Path(directory), step or 0, (record,))))


def beside(path: str, layer: RowLayer) -> str:
    """The file of the rows of a layer that goes with a file of weights."""
    return f"{path}.{layer.name}.safetensors"


def tables_of(strategy: Strategy, model: Any) -> ModelTables | None:
    """The tables of a model; `None` if it has none."""
    layers = embeddings_of(model)
    return ModelTables(strategy, model, layers) if layers else None


def _place(variables: Sequence[Any], variable: Any) -> int:
    return next(place for place, each in enumerate(variables) if each is variable)


class ReadsRows:
    """A function of a model's values and a batch that looks rows up: they are read for it, and none is made.

    Args:
        function: The function, of parameters, state and batch.
        tables: The model's tables.
        replicas: The devices that compute.
    """

    def __init__(self, function: Callable[..., Any], tables: ModelTables, replicas: Replicas) -> None:
        self._function = function
        self._tables = tables
        self._replicas = replicas
        self._known: tuple[RowSource, RowFunction, Callable[..., Any]] | None = None

    def __call__(self, params: Arrays, state: Arrays, batch: Any) -> Any:
        """What the function returns for a batch of the host."""
        source = self._tables.for_reading()
        if self._known is None or self._known[0] is not source:
            rows = RowFunction(lambda values, batch, *_: self._function(*values, batch), source.stacks)
            self._known = source, rows, jax.jit(rows, out_shardings=self._replicas.whole)
        _, rows, compiled = self._known
        needed = rows.find_rows((params, state), batch, _no_key)
        values = [pad_rows(source.read(number, ids)) for number, ids in enumerate(needed.ids)]
        return compiled((params, state), place_rows(self._replicas, batch, values, needed.places), _no_key())


def _no_key() -> jax.Array:
    """Keras draws random numbers from its own state."""
    return jax.random.key(0)
