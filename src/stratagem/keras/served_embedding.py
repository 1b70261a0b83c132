"""`keras.layers.Embedding` itself, in a scope that serves large ones by row.

Model files name this module and the class: neither can be renamed.
"""

import logging
from typing import Any

import jax.numpy as jnp
import keras

from stratagem.errors import StrategyError
from stratagem.keras.embedding import RowLayer

_NEED_THE_MATRIX = ("embeddings_regularizer", "embeddings_constraint", "lora_rank", "quantization_mode")
_log = logging.getLogger(__name__)


@keras.saving.register_keras_serializable("stratagem")
class ServedEmbedding(RowLayer, keras.layers.Embedding):  # type: ignore[misc]
    """A `keras.layers.Embedding` that has its rows in a table, since its matrix would be too large.

    It becomes a plain `keras.layers.Embedding` again as soon as its matrix is used, for example by an output that shares it.
    """

    def __dir__(self) -> list[str]:
        """Return all attributes but the matrix: Keras reads every attribute when it saves, which would make the matrix."""
        return [name for name in super().__dir__() if name != "embeddings"]

    def save_own_variables(self, store: Any) -> None:
        """Write nothing: rows are written by `save_assets`."""

    def load_own_variables(self, store: Any) -> None:
        """Read nothing: rows are read by `load_assets`."""

    @property
    def embeddings(self) -> Any:
        """The matrix, which the layer has from now on."""
        return self._with_matrix("its matrix is used by more than its own look-ups").embeddings

    def enable_lora(self, *args: Any, **kwargs: Any) -> None:
        self._with_matrix("of LoRA").enable_lora(*args, **kwargs)

    def quantize(self, *args: Any, **kwargs: Any) -> None:
        self._with_matrix("it is quantized").quantize(*args, **kwargs)

    def _with_matrix(self, reason: str) -> Any:
        """Turn the layer into a plain one, with its matrix, and return it.

        Raises:
            StrategyError: The table has rows already.
        """
        if self.row_source is not None and len(self.table()):
            raise StrategyError(
                f"the rows of embedding {self.name!r} are in a table, and its whole matrix was asked for after they had been "
                "trained: layer.table() shows them; for a matrix, ask for it before training, or give the strategy a larger "
                "tables_above"
            )
        _log_dense(self, reason)
        layer: Any = self
        layer.__class__ = keras.layers.Embedding
        layer.built = False
        layer._tracker.unlock()  # Keras does not let weights be added to a layer that is built
        layer.build(None)
        return layer

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Return a layer with a configuration."""
        layer = keras.layers.Embedding(**config)
        if not isinstance(layer, cls):  # else the scope has made it one
            _serve(layer)
        return layer


def serve_if_large(layer: Any, tables_above: int) -> None:
    """Put the rows of a new layer into a table if its matrix would have more than `tables_above` bytes and is not needed."""
    size = layer.input_dim * layer.output_dim * jnp.dtype(layer.variable_dtype).itemsize
    if type(layer) is not keras.layers.Embedding or layer.built or size <= tables_above:
        return
    needed = next((name for name in _NEED_THE_MATRIX if getattr(layer, name)), None)
    if needed is not None:
        _log_dense(layer, f"it has {needed}")
        return
    try:
        _serve(layer)
    except StrategyError as error:
        _log_dense(layer, str(error))


def _serve(layer: Any) -> None:
    layer.__class__ = ServedEmbedding
    try:
        layer.describe(layer.input_dim, layer.output_dim, layer.embeddings_initializer)
    except StrategyError:
        layer.__class__ = keras.layers.Embedding
        raise
    layer.built = True


def _log_dense(layer: Any, reason: str) -> None:
    _log.warning("embedding %r is a variable, and not served by row: %s", layer.name, reason)
