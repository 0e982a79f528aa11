"""Estimates, intervals and comparisons: functions of numbers that know nothing about GPUs."""
