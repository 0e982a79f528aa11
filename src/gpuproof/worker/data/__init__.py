"""Sources of a step's batches."""
