"""`sg.keras.Embedding`: an embedding whose rows are kept and trained one by one, wherever the strategy keeps them.

Model files name this module and the class: neither can be renamed.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
from keras.src.backend.common.stateless_scope import get_stateless_scope

from stratagem.engines.local_tables import LocalRows
from stratagem.errors import StrategyError
from stratagem.tables.lookups import look_up
from stratagem.tables.row_source import RowSource, TableView, read_exported_rows, table_view
from stratagem.tables.table import Initializer, Table

_FILE = "rows.safetensors"
_REFUSED = ("embeddings_regularizer", "embeddings_constraint", "weights", "lora_rank", "quantization_config")
_log = logging.getLogger(__name__)


class RowLayer:
    """A layer that has its rows in a table, and no weights.

    Attributes:
        table_spec: The table, as it is described.
        optimizer: The optimizer of these rows; `None`: the model's.
        row_source: Where the rows are; `None` before they are trained, read or loaded.
        probe: The probe of its look-ups while a `train_step` is traced.
    """

    name: str
    trainable: bool
    variable_dtype: str
    compute_dtype: str
    _trainable_variables: list[Any]
    table_spec: Table
    optimizer: Any
    row_source: RowSource | None
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
        """Describe the table, by the arguments of a `Table` with an initializer and an optimizer of Keras's.

        Raises:
            StrategyError: An argument is not what it should be.
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
        self._set(table_spec=table, optimizer=optimizer, row_source=None, probe=None)

    def _set(self, **attributes: Any) -> None:
        """Set attributes without Keras's own `__setattr__`, which would look for variables in them."""
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def build(self, input_shape: Any = None) -> None:
        """Do nothing: there are no weights."""

    def call(self, inputs: Any) -> Any:
        """Return the rows of these ids."""
        if not keras.backend.is_int_dtype(inputs.dtype):
            inputs = keras.ops.cast(inputs, "int32")
        if isinstance(inputs, jax.core.Tracer):
            rows = look_up(self.table_spec, inputs, None if self.probe is None else self.probe.value)
        elif (scope := get_stateless_scope()) is not None and not scope.state_mapping:
            # The model is only being built.
            rows = keras.ops.zeros((*inputs.shape, self.table_spec.dim), self.variable_dtype)
        else:
            rows = self.table().lookup(inputs)
        return keras.ops.cast(rows, self.compute_dtype)

    def table(self) -> TableView:
        """Return a view of the rows as they are now, to look up, iterate over and export; empty before training."""
        source = self.row_source
        if source is None:
            source = untrained_rows([self.table_spec])
            self.set_row_source(source)
        return table_view(source, self.name)

    def set_row_source(self, source: RowSource) -> None:
        """Set where the rows are from now on."""
        self._set(row_source=source)

    def set_probe(self, probe: Any) -> None:
        """Set the probe of look-ups while a `train_step` is traced; see `Probes`."""
        self._set(probe=probe)

    def save_assets(self, inner_path: str) -> None:
        """Write the rows, if there are any, into the model's file."""
        if self.row_source is not None:
            self.table().export(Path(inner_path) / _FILE)

    def load_assets(self, inner_path: str) -> None:
        """Read the rows from the model's file; they stay in this process until the model is trained."""
        path = Path(inner_path) / _FILE
        if path.exists():
            source = untrained_rows([self.table_spec])
            put_rows(source, self.name, read_exported_rows(path, self.table_spec))
            self.set_row_source(source)


@keras.saving.register_keras_serializable("stratagem")
class Embedding(RowLayer, keras.layers.Layer):  # type: ignore[misc]
    """A layer that looks rows up by id, as `keras.layers.Embedding` does, for tables of any size.

    Only the rows of a batch travel, and only those are updated. The layer has no weights: `table()` shows its rows, and
    `model.save` and `model.save_weights` write them, without the optimizer's state of each. It can be trained under a
    strategy only. In `fit`, `evaluate` and `predict` ids of more than 32 bits keep all their bits if they go from the
    model's input to the layer unchanged.

    Args:
        input_dim: Ids are 0 to `input_dim` - 1; `None`: any 64-bit integer, and a row appears when its id is first
            trained.
        output_dim: How many numbers a row has.
        embeddings_initializer: Draws the first value of each row: uniform, normal, truncated or constant. The value
            depends on the seed, the layer's name and the id alone.
        mask_zero: Whether id 0 is padding, which the layers after this one skip.
        optimizer: A Keras or optax optimizer that updates every row by itself; by default the model's.
        admit_after: How often an id has to be seen in training before it is trained itself.
        expire_steps: After how many steps without being trained a row goes; `None`: never.
        **kwargs: The arguments of every layer, such as `name` and `dtype`.

    Raises:
        StrategyError: An argument is not what it should be, or needs the whole matrix.

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
        """Return where ids are not 0, if 0 is padding."""
        return keras.ops.not_equal(inputs, 0) if self.mask_zero else None

    def compute_output_shape(self, input_shape: Sequence[Any]) -> tuple[Any, ...]:
        """Return the shape of the ids followed by that of a row."""
        return (*input_shape, self.output_dim)

    def compute_output_spec(self, inputs: Any) -> Any:
        """Return shape and type of the rows; nothing is looked up."""
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """Return the configuration that `from_config` takes."""
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
        """Return a layer with a configuration."""
        optimizer = config.get("optimizer")
        if optimizer is not None:
            config = {**config, "optimizer": keras.optimizers.deserialize(optimizer)}
        return cls(**config)


def untrained_rows(tables: Sequence[Table]) -> LocalRows:
    """Return a source, empty at first, for the rows of tables that are not being trained."""
    return LocalRows(tables, optax.sgd(1.0))  # which has no slots


def put_rows(source: LocalRows, name: str, pages: Iterable[tuple[Any, Any]]) -> None:
    """Set the values of rows of a table in this process."""
    table = table_view(source, name)
    for ids, values in pages:
        table.put(source.put, ids, values)


def embeddings_of(model: Any) -> list[RowLayer]:
    """Return the embeddings by row in a model, each once."""
    layers = {id(layer): layer for layer in model._flatten_layers() if isinstance(layer, RowLayer)}
    return list(layers.values())


# Keras initializers that draw the values of one row by itself.

_Draw: TypeAlias = Callable[[jax.Array, Sequence[int], Any, float, float], Any]


def _uniform(key: jax.Array, shape: Sequence[int], dtype: Any, least: float, greatest: float) -> Any:
    return jax.random.uniform(key, shape, dtype, least, greatest)


def _normal(key: jax.Array, shape: Sequence[int], dtype: Any, mean: float, deviation: float) -> Any:
    return mean + deviation * jax.random.normal(key, shape, dtype)


def _truncated(key: jax.Array, shape: Sequence[int], dtype: Any, mean: float, deviation: float) -> Any:
    return mean + deviation * jax.random.truncated_normal(key, -2.0, 2.0, shape, dtype)


def _constant(key: jax.Array, shape: Sequence[int], dtype: Any, value: float, _: float) -> Any:
    return jnp.full(shape, value, dtype)


_DRAWS: dict[type, tuple[_Draw, Callable[[Any], tuple[float, float]]]] = {
    keras.initializers.RandomUniform: (_uniform, lambda each: (each.minval, each.maxval)),
    keras.initializers.RandomNormal: (_normal, lambda each: (each.mean, each.stddev)),
    keras.initializers.TruncatedNormal: (_truncated, lambda each: (each.mean, each.stddev)),
    keras.initializers.Zeros: (_constant, lambda _: (0.0, 0.0)),
    keras.initializers.Ones: (_constant, lambda _: (1.0, 0.0)),
    keras.initializers.Constant: (_constant, lambda each: (each.value, 0.0)),
}


def row_initializer(layer: str, initializer: Any) -> tuple[Initializer, int]:
    """Return an initializer of rows that draws from the distribution of a Keras initializer, and its seed.

    Args:
        layer: The layer's name, for messages.
        initializer: The Keras initializer.

    Raises:
        StrategyError: The initializer needs the whole matrix.
    """
    draw, numbers = _DRAWS.get(type(initializer), (None, None))
    if draw is None or numbers is None or np.ndim(numbers(initializer)[0]):
        known = ", ".join(each.__name__ for each in _DRAWS)
        raise StrategyError(
            f"embedding {layer!r} has embeddings_initializer={initializer!r:.80}, which cannot be drawn row by row: give one "
            f"of {known} (Constant: of one number)"
        )
    # A seed drawn at random would differ between workers.
    seed = getattr(initializer, "_init_seed", None)
    return _row_initializer(draw, *numbers(initializer)), seed if isinstance(seed, int) else 0


@lru_cache
def _row_initializer(draw: _Draw, *numbers: float) -> Initializer:
    """Return the same initializer for the same numbers: it is one sign that tables are alike and can form a stack."""

    def initializer(key: jax.Array, shape: Sequence[int], dtype: Any) -> Any:
        first, second = numbers
        return jnp.asarray(draw(key, shape, dtype, first, second), dtype)

    return initializer
