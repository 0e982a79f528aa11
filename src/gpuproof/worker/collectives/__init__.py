"""Collective operations: make buffers, run and time one operation after another, check what came out."""
