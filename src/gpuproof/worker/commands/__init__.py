"""The commands of the node side, one module each."""
