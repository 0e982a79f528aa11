"""Ranks that work together: process groups, sharded models, gradients."""
