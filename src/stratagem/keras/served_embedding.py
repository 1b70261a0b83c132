"""`keras.layers.Embedding` itself, in a scope that serves large ones by row."""

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

    It is what it was before again as soon as somebody asks for the matrix, such as an output that shares it.
    """

    def __dir__(self) -> list[str]:
        """All but the matrix: Keras looks at every attribute of what it saves, and this one it would make so."""
        return [name for name in super().__dir__() if name != "embeddings"]

    def save_own_variables(self, store: Any) -> None:
        """There are none; see `save_assets`."""

    def load_own_variables(self, store: Any) -> None:
        """There are none; see `load_assets`."""

    @property
    def embeddings(self) -> Any:
        """The matrix, which it has from then on."""
        return self._with_matrix("its matrix is used by more than its own look-ups").embeddings

    def enable_lora(self, *args: Any, **kwargs: Any) -> None:
        """See `keras.layers.Embedding`."""
        self._with_matrix("of LoRA").enable_lora(*args, **kwargs)

    def quantize(self, *args: Any, **kwargs: Any) -> None:
        """See `keras.layers.Embedding`."""
        self._with_matrix("it is quantized").quantize(*args, **kwargs)

    def _with_matrix(self, reason: str) -> Any:
        """The layer as Keras has it.

        Raises:
            StrategyError: There are rows in the table already.
        """
        if self.rows_of is not None and len(self.table()):
            raise StrategyError(
                f"the rows of embedding {self.name!r} are in a table, and its whole matrix was asked for after they had been "
                "trained: layer.table() shows them; for a matrix, ask for it before training, or give the strategy a larger "
                "tables_above"
            )
        _stays_dense(self, reason)
        layer: Any = self
        layer.__class__ = keras.layers.Embedding
        layer.built = False
        layer._tracker.unlock()  # Keras lets nobody add weights to a layer that is built
        layer.build(None)
        return layer

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """A layer of a configuration."""
        layer = keras.layers.Embedding(**config)
        if not isinstance(layer, cls):  # the scope may have done so
            _serve(layer)
        return layer


def serve_if_large(layer: Any, tables_above: int) -> None:
    """Let a new layer have its rows in a table, if its matrix has more bytes and nothing needs it."""
    size = layer.input_dim * layer.output_dim * jnp.dtype(layer.variable_dtype).itemsize
    if type(layer) is not keras.layers.Embedding or layer.built or size <= tables_above:
        return
    needed = next((name for name in _NEED_THE_MATRIX if getattr(layer, name)), None)
    if needed is not None:
        _stays_dense(layer, f"it has {needed}")
        return
    try:
        _serve(layer)
    except StrategyError as error:
        _stays_dense(layer, str(error))


def _serve(layer: Any) -> None:
    layer.__class__ = ServedEmbedding
    try:
        layer.describe(layer.input_dim, layer.output_dim, layer.embeddings_initializer)
    except StrategyError:
        layer.__class__ = keras.layers.Embedding
        raise
    layer.built = True


def _stays_dense(layer: Any, reason: str) -> None:
    _log.warning("embedding %r is a variable, and not served by row: %s", layer.name, reason)
