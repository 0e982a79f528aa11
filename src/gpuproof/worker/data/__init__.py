"""Data sources for a step's batches."""
