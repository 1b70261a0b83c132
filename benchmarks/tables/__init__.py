"""Tables by row against TensorFlow's embeddings on parameter servers, in one run: see `__main__`."""
