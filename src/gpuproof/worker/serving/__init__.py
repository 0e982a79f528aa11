"""Serving under load: a generator in its own process, a batcher, and the times of every request."""
