"""Boards of vendors: peaks by precision, memory, links, and what reads them."""
