"""Keras 3 on JAX under every strategy.

`strategy.scope()` and `strategy.adopt(model)` bring a model's `fit`, `evaluate` and `predict` to it, unchanged.
"""

from stratagem.keras.front import KerasFront

front = KerasFront()
"""What strategies find by its entry point."""
