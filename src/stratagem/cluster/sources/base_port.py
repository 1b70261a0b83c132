"""The first port of a host, where a launcher gives hosts and ranks but no ports."""

BASE_PORT = 8888
"""Local rank r of a host listens on `BASE_PORT + r`, as with TensorFlow's Slurm resolver."""
