"""Warm up, time and stop: the measurement loop with its clocks and limits."""
