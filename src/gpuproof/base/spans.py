"""Time spans: the total time they cover, and the parts of spans not covered by other spans.

>>> covered([(0.0, 2.0), (5.0, 6.0), (1.0, 3.0), (1.5, 2.5)])
4.0
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Span = tuple[float, float]
"""Start and end, both in the same unit; a merged list of spans is in order and free of overlaps."""


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return ordered, non-touching spans that cover the same time; empty spans are dropped."""
    result: list[Span] = []
    for begin, end in sorted(spans):
        if begin >= end:
            continue
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((begin, end))
    return result


def covered(spans: Iterable[Span]) -> float:
    """Return how long at least one of the spans was active."""
    return sum(end - begin for begin, end in merged(spans))


def without(spans: Sequence[Span], holes: Sequence[Span]) -> list[Span]:
    """Return the parts of `spans` that lie outside `holes`; both must be merged."""
    result: list[Span] = []
    place = 0
    for begin, end in spans:
        while place < len(holes) and holes[place][1] <= begin:
            place += 1
        at = begin
        for hole_begin, hole_end in _from(holes, place, end):
            if hole_begin > at:
                result.append((at, hole_begin))
            at = max(at, hole_end)
        if at < end:
            result.append((at, end))
    return result


def _from(holes: Sequence[Span], place: int, end: float) -> Iterable[Span]:
    while place < len(holes) and holes[place][0] < end:
        yield holes[place]
        place += 1
