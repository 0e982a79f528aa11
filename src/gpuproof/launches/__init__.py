"""What one launch shows: its rate, its ranks, what limited it, idle time, and requests."""
