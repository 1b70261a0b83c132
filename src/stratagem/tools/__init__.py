"""The tools around a training script: the command line and its launcher, manifests, capacity planning, measuring, checking."""
