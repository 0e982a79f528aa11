"""Pruning while a model learns: when, which weights, and how they stay zero."""
