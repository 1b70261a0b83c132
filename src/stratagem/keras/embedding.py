"""`sg.keras.Embedding`: an embedding whose rows are kept and trained one by one, wherever the strategy keeps them."""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import keras
import optax
from keras.src.backend.common.stateless_scope import get_stateless_scope

from stratagem.engines.local_tables import LocalRows
from stratagem.errors import StrategyError
from stratagem.keras.row_initializers import row_initializer
from stratagem.tables.lookups import look_up
from stratagem.tables.row_source import RowSource, TableView, read_exported_rows, table_view
from stratagem.tables.table import Table

_FILE = "rows.safetensors"
_REFUSED = ("embeddings_regularizer", "embeddings_constraint", "weights", "lora_rank", "quantization_config")
_log = logging.getLogger(__name__)


class RowLayer:
    """What a layer is that has its rows in a table, and no weights."""

    name: str
    trainable: bool
    variable_dtype: str
    compute_dtype: str
    _trainable_variables: list[Any]
    described: Table
    optimizer: Any
    rows_of: RowSource | None
    probe: Any

    def describe(
        self,
        rows: int | None,
        dim: int,
        initializer: Any,
        optimizer: Any = None,
        admit_after: int = 0,
        expire_steps: int | None = None,
    ) -> None:
        """Say what the table is.

        Args:
            rows: Ids are below this; `None`: any.
            dim: How many numbers a row has.
            initializer: One of Keras's.
            optimizer: Of these rows; by default the model's.
            admit_after: How often an id has to be seen before it is trained.
            expire_steps: After how many steps without being trained a row goes.

        Raises:
            StrategyError: One of these is not what it should be.
        """
        draw, seed = row_initializer(self.name, initializer)
        table = Table(
            self.name,
            dim,
            rows,
            initializer=draw,
            seed=seed,
            dtype=self.variable_dtype,
            admit_after=admit_after,
            expire_steps=expire_steps,
        )
        # Nothing for Keras to look for variables in.
        self._own(described=table, optimizer=optimizer, rows_of=None, probe=None)

    def _own(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def build(self, input_shape: Any = None) -> None:
        """Nothing to do: there are no weights."""

    def call(self, inputs: Any) -> Any:
        """The rows of these ids."""
        if not keras.backend.is_int_dtype(inputs.dtype):
            inputs = keras.ops.cast(inputs, "int32")
        if isinstance(inputs, jax.core.Tracer):
            rows = look_up(self.described, inputs, None if self.probe is None else self.probe.value)
        elif (scope := get_stateless_scope()) is not None and not scope.state_mapping:
            rows = keras.ops.zeros(
                (*inputs.shape, self.described.dim), self.variable_dtype
            )  # only to be built
        else:
            rows = self.table().lookup(inputs)
        return keras.ops.cast(rows, self.compute_dtype)

    def table(self) -> TableView:
        """The rows as they are now: they can be looked up, iterated over and exported. None, before it is trained."""
        source = self.rows_of
        if source is None:
            source = rows_to_read([self.described])
            self.keep_rows_in(source)
        return table_view(source, self.name)

    def keep_rows_in(self, source: RowSource) -> None:
        """From now on its rows are there."""
        self._own(rows_of=source)

    def look_up_with(self, probe: Any) -> None:
        """While a `train_step` is traced, let look-ups have this probe; see `Probes`."""
        self._own(probe=probe)

    def save_assets(self, inner_path: str) -> None:
        """Keras writes a model's file: the rows are in it, if there are any."""
        if self.rows_of is not None:
            self.table().export(Path(inner_path) / _FILE)

    def load_assets(self, inner_path: str) -> None:
        """Keras reads a model's file: the rows are in this process until the model is trained."""
        path = Path(inner_path) / _FILE
        if path.exists():
            source = rows_to_read([self.described])
            put_rows(source, self.name, read_exported_rows(path, self.described))
            self.keep_rows_in(source)


@keras.saving.register_keras_serializable("stratagem")
class Embedding(RowLayer, keras.layers.Layer):  # type: ignore[misc]
    """Rows that are looked up by id, as `keras.layers.Embedding` does, for tables of any size.

    Only the rows of a batch travel, and only those are updated. The layer has no weights: `table()` shows its rows, and
    `model.save` and `model.save_weights` write them, without the optimizer's state of each. It can be trained under a
    strategy only. Ids of more than 32 bits are looked up as they are in `fit`, `evaluate` and `predict`, where the layer
    is given them as the model is.

    Args:
        input_dim: Ids are 0 to `input_dim` - 1; `None`: any 64-bit integer, and a row appears when its id is first
            trained.
        output_dim: How many numbers a row has.
        embeddings_initializer: Draws the first value of each row: uniform, normal, truncated or constant. It depends
            on its seed, the layer's name and the id alone.
        mask_zero: Whether id 0 is padding, which the layers after this one leave out.
        optimizer: An optimizer of Keras's or optax's that treats every row by itself; by default the model's.
        admit_after: How often an id has to be seen in training before it is trained itself.
        expire_steps: After how many steps without being trained a row goes; `None`: never.
        **kwargs: Those of every layer, such as `name` and `dtype`.

    Raises:
        StrategyError: One of these is not what it should be, or can be had with the whole matrix only.

    Example:
        >>> with strategy.scope():
        ...     model = keras.Sequential([sg.keras.Embedding(None, 16, name="users"), keras.layers.Flatten()])
    """

    def __init__(
        self,
        input_dim: int | None,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        *,
        mask_zero: bool = False,
        optimizer: Any = None,
        admit_after: int = 0,
        expire_steps: int | None = None,
        **kwargs: Any,
    ) -> None:
        for name in _REFUSED:
            if kwargs.pop(name, None) is not None:
                raise StrategyError(
                    f"sg.keras.Embedding was given {name}, which needs the whole matrix: leave it out, or use "
                    "keras.layers.Embedding"
                )
        super().__init__(**kwargs)
        self.input_dim = input_dim
        self.output_dim = output_dim
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.mask_zero = mask_zero
        self.admit_after = admit_after
        self.expire_steps = expire_steps
        self.supports_masking = mask_zero
        self.autocast = False
        self.describe(
            input_dim, output_dim, self.embeddings_initializer, optimizer, admit_after, expire_steps
        )
        self.built = True

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Where ids are not 0, if 0 is padding."""
        return keras.ops.not_equal(inputs, 0) if self.mask_zero else None

    def compute_output_shape(self, input_shape: Sequence[Any]) -> tuple[Any, ...]:
        """The shape of the ids, and then that of a row."""
        return (*input_shape, self.output_dim)

    def compute_output_spec(self, inputs: Any) -> Any:
        """By shape alone: nothing is looked up."""
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """What a layer like this one is made of."""
        optimizer = self.optimizer
        if optimizer is not None and not isinstance(optimizer, keras.optimizers.Optimizer):
            _log.warning(
                "the optax optimizer of embedding %r is not kept with the model: a model that is loaded trains it with its "
                "own, unless the layer has one of Keras's",
                self.name,
            )
            optimizer = None
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "mask_zero": self.mask_zero,
            "optimizer": None if optimizer is None else keras.optimizers.serialize(optimizer),
            "admit_after": self.admit_after,
            "expire_steps": self.expire_steps,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Embedding":
        """A layer of a configuration."""
        optimizer = config.get("optimizer")
        if optimizer is not None:
            config = {**config, "optimizer": keras.optimizers.deserialize(optimizer)}
        return cls(**config)


def rows_to_read(tables: Sequence[Table]) -> LocalRows:
    """Rows in this process, of tables that are not trained; there are none at first."""
    return LocalRows(tables, optax.sgd(1.0))  # which keeps nothing of a row but the row


def put_rows(source: LocalRows, name: str, pages: Iterable[tuple[Any, Any]]) -> None:
    """Give rows of a table in this process values from elsewhere."""
    table = table_view(source, name)
    for ids, values in pages:
        table.put(source.put, ids, values)


def embeddings_of(model: Any) -> list[RowLayer]:
    """The embeddings by row in a model, each once."""
    found = {id(layer): layer for layer in model._flatten_layers() if isinstance(layer, RowLayer)}
    return list(found.values())
