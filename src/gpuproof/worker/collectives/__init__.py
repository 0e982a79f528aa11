"""Collective operations: allocate buffers, run and time each operation, check the output."""
