"""Launchers: start the ranks of a case where the devices are. They know files and processes, no results."""
