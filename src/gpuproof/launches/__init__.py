"""Results of one launch: its rate, its ranks, what limited it, idle time, and requests."""
