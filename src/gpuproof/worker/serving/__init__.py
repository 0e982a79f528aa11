"""Serving under load: a generator in its own process, a batcher, and per-request times."""
