"""The command line: start, supervise and look at jobs. Imports no JAX until a command needs it."""
