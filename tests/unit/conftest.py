"""What unit tests compile is compiled quickly, and Keras computes with JAX: both must be told before they are first used."""

import os

from drills.quick_compiling import QUICKLY
from stratagem.environment import KERAS_BACKEND

os.environ.update({**QUICKLY, KERAS_BACKEND: "jax"})
