"""Suites: which cases come next, given the results so far. Pure; none of them starts or writes anything."""
