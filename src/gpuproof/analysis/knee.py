"""Where does a throughput–latency curve turn up? The point farthest below the chord of its ends.

In: points (rate, latency), rate ascending. Out: the index of the knee, or None where the curve has none.
Both axes
are scaled to 0–1 first (Satopää et al. 2011, "Finding a Kneedle in a Haystack", for convex rising curves).

>>> find_knee([(1, 1.0), (2, 1.1), (3, 1.2), (4, 1.4), (5, 9.0)])
3
"""

from __future__ import annotations

from collections.abc import Sequence

MIN_POINTS = 4
MIN_DEPTH = 0.1
"""Below the chord by less than this, of the whole height, a curve has no knee worth a name."""


def find_knee(points: Sequence[tuple[float, float]]) -> int | None:
    """Return the index of the knee of a convex rising curve; None for too few points or no clear bend."""
    if len(points) < MIN_POINTS:
        return None
    (low_x, low_y), (high_x, high_y) = points[0], points[-1]
    if not (high_x > low_x and high_y > low_y):
        return None
    depths = [(x - low_x) / (high_x - low_x) - (y - low_y) / (high_y - low_y) for x, y in points]
    index = max(range(len(points)), key=depths.__getitem__)
    return index if depths[index] >= MIN_DEPTH else None
