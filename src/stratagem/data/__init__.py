"""Data for training: files in, batches out."""
