"""One module per framework; each function in them makes ready to train and returns what trains on."""
