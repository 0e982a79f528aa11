"""Machines rented by the hour."""
