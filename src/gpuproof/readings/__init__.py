"""Readings: what recordings hold, and what they say of a window. Pure."""
