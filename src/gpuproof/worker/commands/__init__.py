"""The commands of the node side, one module per command."""
