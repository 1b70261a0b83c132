"""Stratagem against bare loops that do the same, and against TensorFlow and PyTorch: see `__main__`."""
