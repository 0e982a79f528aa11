"""Train with TensorFlow, which needs its own environment: same records, timed by the host's clock."""
