"""Estimates, intervals and comparisons: functions of plain numbers, unaware of GPUs."""
