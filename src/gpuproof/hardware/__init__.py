"""Vendors' boards: peak rates by precision, memory, links, and the code that reads them."""
