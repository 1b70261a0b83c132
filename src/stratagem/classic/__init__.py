"""What TensorFlow 1 had on top of its strategies: the Estimator, slim's deployment of clones, the cluster coordinator."""
