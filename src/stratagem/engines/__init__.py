"""How strategies work: where variables live, how batches become gradients, and gradients updates."""
