"""Faults that are planted, to show that the verdict turns: `gpuproof selftest`."""
