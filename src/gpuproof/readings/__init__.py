"""Readings of devices and the host: recordings, windows within them, and their summaries."""
