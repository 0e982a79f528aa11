"""Suites decide which cases come next, given the results so far. They start and write nothing."""
