"""The interface to torch's compute devices: the only place that names a vendor's module."""
