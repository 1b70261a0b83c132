"""The synchronous strategies against bare JAX, TensorFlow and PyTorch, all in one run: see `__main__`."""
