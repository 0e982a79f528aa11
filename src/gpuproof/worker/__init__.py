"""The worker: one process a rank, beside the device. It reads a case and writes records."""
