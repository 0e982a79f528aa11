"""Doubts: every rule that says when a measurement is not to be trusted, registered in `rules`."""
