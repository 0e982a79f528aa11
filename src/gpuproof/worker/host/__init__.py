"""The hardware and software of a host, and other activity on it during a run."""
