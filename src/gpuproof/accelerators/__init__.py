"""The seam to the devices that torch computes on: the one place that names a vendor's module."""
