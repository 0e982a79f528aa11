"""Readings for Prometheus: names, families, the HTTP server, and access control."""
