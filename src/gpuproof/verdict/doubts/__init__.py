"""Warnings: every rule about when not to trust a measurement, as registered in `rules`."""
