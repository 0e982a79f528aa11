"""A sweep in figures: every point by itself, which is best, and what the others say against it.

In: each point's summary. Out: the same with a comparison against the best point, and for a search of batch
sizes the largest that fits and the knee. A point is only compared where its launches are replicates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuproof.analysis.launch import Launch
from gpuproof.analysis.run_summary import RunSummary, are_replicates
from gpuproof.statistics.comparison import MIN_LAUNCHES, Comparison, compare_launches

CONFIDENCE = 0.95
"""Of all comparisons of a sweep together: the best point was picked by the data, so that each pair counts
(Bonferroni's correction; Dunn 1961, https://doi.org/10.1080/01621459.1961.10482090)."""
FORKED = "launches were forked from one process, and are no replicates (run.start=exec launches fresh ones)"
TOO_FEW = (
    f"a point needs {MIN_LAUNCHES} launches, or a difference may be that of any two launches (run.repeats)"
)
NEAR_BEST = 0.95
"""The knee is the smallest batch with so much of the best throughput."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointSummary:
    """One point of a sweep."""

    case_id: str
    assignment: Mapping[str, Any]
    """Swept key → value."""
    summary: RunSummary
    refused: bool = False
    """It failed as the search meant it to, for want of memory."""
    against_best: Comparison | None = None
    """None for the best point itself, and where there is nothing to compare."""
    not_compared: str | None = None
    """Why there is no comparison with the best point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSummary:
    """All points of a sweep."""

    points: tuple[PointSummary, ...]
    best: PointSummary | None
    """The point of the highest throughput."""
    best_missing: str | None
    """Why no point can be called the best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """What a search of batch sizes found."""

    largest: int | None
    """The largest batch size that fits; None where none did."""
    too_large: int | None
    """The smallest batch size that ran out of memory; None where all fit."""
    knee: PointSummary | None
    """The smallest batch whose throughput is near the best one's."""


def summarize_sweep(points: Sequence[PointSummary]) -> SweepSummary:
    """Find the best point and compare the others with it."""
    usable = [point for point in points if _is_usable(point)]
    items = {point.summary.launches[0].setup.item for point in usable}
    if not usable or len(items) > 1:
        missing = (
            f"points count different things ({', '.join(sorted(items))})"
            if usable
            else "nothing was measured"
        )
        return SweepSummary(points=tuple(points), best=None, best_missing=missing)
    best = max(usable, key=_rate)
    num_pairs = max(1, len(usable) * (len(usable) - 1) // 2)
    compared = tuple(
        _compared(point, best, confidence=1 - (1 - CONFIDENCE) / num_pairs)
        if point in usable and point is not best
        else point
        for point in points
    )
    return SweepSummary(points=compared, best=best, best_missing=None)


def _is_usable(point: PointSummary) -> bool:
    return point.summary.items_per_s_total is not None and point.summary.validity != "INVALID"


def _rate(point: PointSummary) -> float:
    assert point.summary.items_per_s_total is not None
    return point.summary.items_per_s_total


def _compared(point: PointSummary, best: PointSummary, *, confidence: float) -> PointSummary:
    a, b = best.summary.launches, point.summary.launches
    if min(len(a), len(b)) < MIN_LAUNCHES:
        return replace(point, not_compared=TOO_FEW)
    if not (are_replicates(a) and are_replicates(b)):
        return replace(point, not_compared=FORKED)
    comparison = compare_launches(_rates(a), _rates(b), better="higher", confidence=confidence)
    return replace(point, against_best=comparison, not_compared=comparison.reason)


def _rates(launches: Sequence[Launch]) -> list[float]:
    return [launch.items_per_s_total for launch in launches]


def batch_limits(sweep: SweepSummary, *, key: str) -> BatchLimits:
    """Read the limits off a search over `key`, whose values are batch sizes."""
    fit = [point for point in sweep.points if point.summary.launches and not point.refused]
    refused = [point.assignment[key] for point in sweep.points if point.refused]
    best = sweep.best
    near = [point for point in fit if best is not None and _rate(point) >= NEAR_BEST * _rate(best)]
    return BatchLimits(
        largest=max((point.assignment[key] for point in fit), default=None),
        too_large=min(refused, default=None),
        knee=min(near, key=lambda point: int(point.assignment[key]), default=None),
    )


def describe_comparison(point: PointSummary, best: PointSummary) -> str:
    """Say in words how a point that was measured stands to the best one; "" where they count other things."""
    if point.not_compared is None and point.against_best is None:
        return ""
    change = f"{_rate(point) / _rate(best) - 1:+.1%}"
    found = point.against_best
    if found is None or found.ratio is None:
        return f"{change}; cannot tell"
    if found.verdict == "no difference shown":
        assert found.min_detectable is not None
        return f"{change}; no difference shown (one of {found.min_detectable:.1%} would show)"
    return f"{change}; {found.verdict} at {CONFIDENCE:.0%}, all pairs together"
