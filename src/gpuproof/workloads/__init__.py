"""Workloads: what the device computes. `base` and `catalogue` are torch-free; the rest uses torch."""
