"""Keras computes with JAX here: it must be told before anything imports it, as TensorFlow does."""

import os

os.environ["KERAS_BACKEND"] = "jax"
