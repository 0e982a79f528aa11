"""Workloads that run on the device. `base` and `catalogue` are torch-free; the rest uses torch."""
