"""Launchers: start the ranks of a case where the devices are; they only handle processes and files."""
