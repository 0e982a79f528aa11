"""Where the batches of a step come from."""
