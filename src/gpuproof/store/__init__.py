"""Run directories."""
