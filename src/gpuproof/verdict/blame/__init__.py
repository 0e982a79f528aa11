"""Find what slows or hangs a group that works together, using group testing."""
