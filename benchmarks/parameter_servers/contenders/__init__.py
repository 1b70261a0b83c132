"""One module per way to train; each function in them makes ready to train and returns what trains on."""
