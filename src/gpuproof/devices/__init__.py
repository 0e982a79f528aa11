"""Devices: one adapter a vendor, all behind one protocol. A missing reading is None with a reason."""
