"""Run a suite: the scheduler, the conclusion from disk, and the Python API."""
