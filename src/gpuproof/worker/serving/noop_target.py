"""A server that does nothing: every batch is done at once, so that generator and queue alone are measured."""


def run_nothing(num_samples: int) -> None:
    """Return at once."""
