"""The workloads in torch, imported where a step is built."""
