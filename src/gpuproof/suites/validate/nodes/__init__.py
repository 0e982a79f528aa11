"""What a validation says of whole nodes: which to drain, and which to run on."""
