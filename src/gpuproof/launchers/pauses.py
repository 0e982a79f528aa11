"""How often a queue is looked at: soon after a change, ever less often while nothing changes."""

FIRST_POLL_S, SLOWER, LAST_POLL_S = 0.5, 1.5, 10.0
"""Time between two looks: after a change, its growth while nothing changes, and its most."""


def next_pause_s(pause_s: float, *, is_news: bool) -> float:
    """Return how long to wait before the next look at the queue.

    >>> next_pause_s(8.0, is_news=True), next_pause_s(0.5, is_news=False), next_pause_s(9.0, is_news=False)
    (0.5, 0.75, 10.0)
    """
    return FIRST_POLL_S if is_news else min(pause_s * SLOWER, LAST_POLL_S)
