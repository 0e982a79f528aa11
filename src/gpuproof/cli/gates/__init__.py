"""A gate before each job: this one node is judged in seconds, and wrappers for those who start jobs."""
