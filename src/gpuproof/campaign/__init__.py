"""Run a suite: the scheduler, concluding a run from disk, and the Python API."""
