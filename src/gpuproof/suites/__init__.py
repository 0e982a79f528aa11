"""Suites decide which cases come next, given the results so far. They neither start nor write anything."""
