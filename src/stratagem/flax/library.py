"""Flax NNX itself, or word of what to install: the one place that imports it."""

from stratagem.errors import MissingExtra

try:
    from flax import nnx as nnx
except ModuleNotFoundError as error:
    if error.name != "flax":  # Flax is there, and lacks something of its own
        raise
    raise MissingExtra(
        "sg.flax trains Flax NNX models, and Flax is not installed: pip install 'stratagem[flax]'"
    ) from error
