"""TensorFlow 1's interfaces on top of strategies: the Estimator, slim's deployment of clones, the cluster coordinator."""
