"""Workload descriptions without torch: options, shapes and closed-form FLOP counts."""
