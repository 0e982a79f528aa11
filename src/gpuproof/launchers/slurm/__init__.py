"""Slurm: jobs in its queue if outside an allocation, steps on its nodes if inside one."""
