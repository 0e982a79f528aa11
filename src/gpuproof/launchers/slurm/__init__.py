"""Slurm: jobs of its queue outside of an allocation, steps on its nodes inside of one."""
