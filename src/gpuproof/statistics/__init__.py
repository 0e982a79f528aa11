"""Estimates, intervals and comparisons: functions of numbers, which know nothing of GPUs."""
