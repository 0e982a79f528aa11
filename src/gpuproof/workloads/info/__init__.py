"""Workload descriptions without torch: options, shapes and work in closed form."""
