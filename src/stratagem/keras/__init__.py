"""Keras 3 on JAX under every strategy.

`strategy.scope()` and `strategy.adopt(model)` bring a model's `fit`, `evaluate` and `predict` to it, unchanged.
"""

from typing import TYPE_CHECKING

from stratagem.keras.front import KerasFront
from stratagem.lazy import lazily

if TYPE_CHECKING:
    from stratagem.keras.embedding import Embedding as Embedding

front = KerasFront()
"""What strategies find by its entry point."""

# The same list as above, for the interpreter: a test holds the two together.
_HOMES = {
    "Embedding": "stratagem.keras.embedding",
}

if not TYPE_CHECKING:  # a checker shall find wrong names
    __getattr__, __dir__ = lazily(__name__, _HOMES)
