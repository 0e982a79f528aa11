"""Probes: each examines one property of devices, links or a disk; all write the same record type."""
