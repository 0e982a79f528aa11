"""Find what slows or hangs a group that works together, using a search with group tests."""
