"""Training under TensorFlow, which an environment of its own has: the same records, by the host's clock."""
