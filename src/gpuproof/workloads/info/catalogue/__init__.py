"""The built-in workloads, torch-free: shapes, parameter counts and FLOPs in closed form, a file a family.

Every layer that multiplies is listed once, here; the torch modules are built from the same plans, and
tests hold the closed forms against torch's own counters. Entry points name these objects.
"""
