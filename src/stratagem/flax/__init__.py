"""Flax NNX models under every strategy. Names are loaded when first used; only then is Flax imported.

Flax Linen and Equinox keep parameters apart from the model: they need no front (`examples/flax_linen.py`,
`examples/equinox_mlp.py`).
"""

from typing import TYPE_CHECKING

from stratagem.lazy import lazily

if TYPE_CHECKING:
    from stratagem.flax.trainable import Trainable as Trainable

# The same list as above, for the interpreter: a test holds the two together.
_HOMES = {
    "Trainable": "stratagem.flax.trainable",
}

if not TYPE_CHECKING:  # a checker shall find wrong names
    __getattr__, __dir__ = lazily(__name__, _HOMES)
