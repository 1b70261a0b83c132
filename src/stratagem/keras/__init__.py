"""Keras 3 on JAX under every strategy.

`strategy.scope()` and `strategy.adopt(model)` bring a model's `fit`, `evaluate` and `predict` under a strategy, unchanged.

A map, from the outside in:

    front                brings models under a strategy: by its scope, or explicitly
    adopted_model        one model under a strategy: what its methods do instead of Keras's own
    saving               `save`, `save_weights`, `export` and `load_weights` where several workers run the script
    callbacks            the callbacks of a `fit`, the user's and ours
    method_arguments     the arguments of `fit`, `evaluate` and `predict`; pipelines among them
    epoch_batches        the batches of an epoch that are this worker's
    value_home           where values live while the model trains: the interface, and the home in this process
    server_value_home    the home on parameter servers
    extra_state          state that travels with a model on servers: the loss scale, what the chief controls
    evaluation           a model that is evaluated or predicts
    gathering            values that workers bring together: arrays, logs, the state of random numbers
    trainable            a compiled model as a `Trainable`, its optimizer as an `Updater`
    host_layers          layers that TensorFlow computes on the host before each step
    embedding            `sg.keras.Embedding`: an embedding by row, and initializers of its rows
    served_embedding     `keras.layers.Embedding` that is served by row because it is large
    model_tables         the rows of a model's embeddings, and the optimizers that update them
"""

from typing import TYPE_CHECKING

from stratagem.keras.front import KerasFront
from stratagem.lazy import lazily

if TYPE_CHECKING:
    from stratagem.keras.embedding import Embedding as Embedding

front = KerasFront()
"""The object that strategies load by an entry point."""

# The same list as above, for the interpreter: a test holds the two together.
_HOMES = {
    "Embedding": "stratagem.keras.embedding",
}

if not TYPE_CHECKING:  # a checker shall find wrong names
    __getattr__, __dir__ = lazily(__name__, _HOMES)
