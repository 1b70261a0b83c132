"""Keras computes with JAX here; what it is told of that must be there before anything imports it."""

import os

os.environ["KERAS_BACKEND"] = "jax"
