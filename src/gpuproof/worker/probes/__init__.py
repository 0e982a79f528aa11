"""Probes: one property of devices, links or a disk each; what they find goes into one kind of record."""
