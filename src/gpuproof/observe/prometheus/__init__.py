"""Readings for Prometheus: names, families, the server that is scraped, and who may scrape it."""
