"""Warm up, time and stop: the measuring loop, and what its clocks and limits are."""
