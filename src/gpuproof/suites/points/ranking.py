"""Points of a sweep, or tests of a suite, in figures: each by itself, the best, and how others compare.

In: each point's figures. Out: the best one, comparisons against it, and for a search of batch sizes the
largest that fits and the knee. A point is only compared where its launches are replicates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuproof.base.units import would_show
from gpuproof.comparison.winners import ComparedSide, compare_sides, contest
from gpuproof.launches.point_figures import PointFigures
from gpuproof.statistics.comparison import MIN_LAUNCHES, Comparison

CONFIDENCE = 0.95
"""Of all comparisons of a sweep together: the best point was picked by the data, so that each pair counts
(Bonferroni's correction; Dunn 1961, https://doi.org/10.1080/01621459.1961.10482090)."""
FORKED = (
    "launches were forked from one process and are not independent repeats (run.start=exec starts fresh "
    "processes)"
)
TOO_FEW = (
    f"a point needs {MIN_LAUNCHES} launches, or a difference may be that of any two launches (run.repeats)"
)
NEAR_BEST = 0.95
"""The knee is the smallest batch with so much of the best throughput."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainstBest:
    """How a point stands to the best one."""

    comparison: Comparison | None
    """None where there is nothing to compare."""
    missing: str | None
    """Why there is no comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """All points of a sweep against the best one."""

    best: PointFigures | None
    """The point of the highest throughput."""
    missing: str | None
    """Why no point can be called the best."""
    against_best: Mapping[str, AgainstBest]
    """By point, those that can stand beside the best one."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """By point, why it can be neither the best nor worse than it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """What a search of batch sizes found."""

    largest: int | None
    """The largest batch size that fits; None where none did."""
    too_large: int | None
    """The smallest batch size that ran out of memory; None where all fit."""
    knee: PointFigures | None
    """The smallest batch whose throughput is near the best one's."""


def side_of(point: PointFigures) -> ComparedSide:
    """Return a point as others are held against it, by its rate."""
    return ComparedSide(
        name=point.case_id,
        values=[launch.value for launch in point.launches],
        doubts=point.doubts,
        validity=point.validity,
        value=point.rate_value,
    )


def rank(points: Sequence[PointFigures]) -> Ranking:
    """Find the best point of those that can be used and compare the others with it."""
    measured = [point for point in points if point.rate_value is not None]
    outcome = contest([side_of(point) for point in measured], better="higher")
    names = {side.name for side in outcome.contenders}
    usable = [point for point in measured if point.case_id in names]
    items = {point.item for point in usable}
    missing = outcome.missing if measured else "nothing was measured"
    if missing is None and len(items) > 1:
        missing = f"points count different things ({', '.join(sorted(items))})"
    if missing is not None:
        return Ranking(best=None, missing=missing, against_best={}, left_out=outcome.left_out)
    best = max(usable, key=_rate)
    num_pairs = max(1, len(usable) * (len(usable) - 1) // 2)
    confidence = 1 - (1 - CONFIDENCE) / num_pairs
    compared = {p.case_id: _compare(p, best, confidence=confidence) for p in usable if p is not best}
    return Ranking(best=best, missing=None, against_best=compared, left_out=outcome.left_out)


def _rate(point: PointFigures) -> float:
    value = point.rate_value
    assert value is not None
    return value


def _compare(point: PointFigures, best: PointFigures, *, confidence: float) -> AgainstBest:
    a, b = best.launches, point.launches
    if min(len(a), len(b)) < MIN_LAUNCHES:
        return AgainstBest(comparison=None, missing=TOO_FEW)
    if not (best.are_replicates and point.are_replicates):
        return AgainstBest(comparison=None, missing=FORKED)
    comparison = compare_sides(side_of(best), side_of(point), better="higher", confidence=confidence)
    return AgainstBest(comparison=comparison, missing=comparison.reason)


def batch_limits(points: Sequence[PointFigures], ranking: Ranking, *, key: str) -> BatchLimits:
    """Read the limits off a search over `key`, whose values are batch sizes."""
    fit = [point for point in points if point.num_launches and not point.refused]
    best = ranking.best
    usable = [point for point in fit if point.case_id not in ranking.left_out]
    near = [point for point in usable if best is not None and _rate(point) >= NEAR_BEST * _rate(best)]
    return BatchLimits(
        largest=max((point.assignment[key] for point in fit), default=None),
        too_large=min((point.assignment[key] for point in points if point.refused), default=None),
        knee=min(near, key=lambda point: int(point.assignment[key]), default=None),
    )


def describe_comparison(point: PointFigures, ranking: Ranking) -> str:
    """Say in words how a point stands to the best one; "" where they cannot stand beside each other."""
    if reason := ranking.left_out.get(point.case_id):
        return f"cannot tell: {reason.removeprefix(f'{point.case_id} is ')}"
    against = ranking.against_best.get(point.case_id)
    if against is None or ranking.best is None:
        return ""
    change = f"{_rate(point) / _rate(ranking.best) - 1:+.1%}"
    comparison = against.comparison
    if comparison is None or comparison.ratio is None:
        return f"{change}; cannot tell"
    if comparison.verdict == "no difference shown":
        assert comparison.min_detectable is not None
        return f"{change}; no difference shown ({would_show(comparison.min_detectable)})"
    return f"{change}; {comparison.verdict} at {CONFIDENCE:.0%}, all pairs together"
