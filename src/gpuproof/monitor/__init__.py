"""The sampler: a process of its own that reads devices and host beside the work."""
