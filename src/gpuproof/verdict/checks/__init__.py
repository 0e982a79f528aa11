"""Checks of the environment: pure questions to what hosts told of themselves, one outcome a host or GPU."""
