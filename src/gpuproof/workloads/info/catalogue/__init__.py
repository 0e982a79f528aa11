"""Built-in workloads, torch-free: shapes, parameters and FLOPs in closed form, a file per family.

Every layer with multiplications is listed once, here. The torch modules are built from the same plans, and
tests compare the closed-form counts with torch's own counters. The package's entry points refer to these
objects.
"""
