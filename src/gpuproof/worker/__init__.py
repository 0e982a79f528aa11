"""The worker: one process per rank, next to the device. It reads a case and writes records."""
