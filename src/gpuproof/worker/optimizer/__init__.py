"""The optimizers of a case: torch's own, and what some do at each update beside its arithmetic."""
