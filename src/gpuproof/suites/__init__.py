"""Suites: which cases come next, given the results so far. Pure: they start and write nothing."""
