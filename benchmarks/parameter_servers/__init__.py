"""Parameter servers against TensorFlow's, and against no servers at all, in one run: see `__main__`."""
