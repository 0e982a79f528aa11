"""Machines that are rented by the hour."""
