"""A gate before each job: checks a single node in seconds, with wrappers for job launchers."""
