"""A gate before each job: judges a single node in seconds, with wrappers for job launchers."""
