"""The interface to torch's compute devices: the only code that refers to a vendor's module."""
