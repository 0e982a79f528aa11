"""Devices: one adapter per vendor, one protocol. A missing reading is None with a reason."""
