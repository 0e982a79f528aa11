"""The torch side of workloads, imported where a step is built."""
