"""What a host contains, and what else it was doing during a run."""
