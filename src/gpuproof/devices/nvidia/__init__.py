"""NVIDIA GPUs and their MIG instances, read through NVML."""
