"""Temporary until the branch on windows at the power cap is merged."""

AT_CAP = 0.5
