"""One module per place a cluster can be read from; `stratagem.cluster.resolve` knows their order."""
