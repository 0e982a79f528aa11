"""Points of a sweep, or tests of a suite, in figures: each by itself, the best, and how others compare.

In: each point's figures. Out: the best one, comparisons against it, and for a search of batch sizes the
largest that fits and the knee. A point is only compared where its launches are replicates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuproof.records.result import LaunchValue, Validity
from gpuproof.records.run import Failure
from gpuproof.statistics.comparison import MIN_LAUNCHES, Comparison, compare_launches
from gpuproof.statistics.estimate import Interval

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
class PointFigures:
    """What all launches of one recipe gave: the only one, a point of a sweep or a test of a suite."""

    case_id: str
    assignment: Mapping[str, Any]
    """Swept key → value; empty for the only one."""
    kind: str
    model: str
    batch_size: int
    item: str
    items_per_sample: int
    device: str | None
    """None where nothing was measured."""
    num_devices: int | None
    launches: tuple[LaunchValue, ...]
    """Throughput of each launch that measured something, in items a second, all ranks together."""
    num_planned: int
    items_total: int
    window_s: float
    items_per_s_total: float | None
    items_per_s_total_interval: Interval | None
    mean_step_s: float | None
    peak_allocated_bytes: int | None
    energy_j: float | None
    """Of all launches; None where one of them is not known."""
    validity: Validity | None
    failures: tuple[Failure, ...]
    """The first failure of each launch that failed or was cut short."""
    refused: bool = False
    """It failed as the search meant it to, for want of memory."""

    @property
    def success(self) -> bool | None:
        """Whether every launch measured what it was asked to; None where it was not run to an end."""
        if self.failures:
            return False
        return True if len(self.launches) >= self.num_planned else None

    @property
    def are_replicates(self) -> bool:
        """Whether launches may feed an interval between launches: each must be a fresh process."""
        return all(launch.start == "exec" for launch in self.launches)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """What a search of batch sizes found."""

    largest: int | None
    """The largest batch size that fits; None where none did."""
    too_large: int | None
    """The smallest batch size that ran out of memory; None where all fit."""
    knee: PointFigures | None
    """The smallest batch whose throughput is near the best one's."""


def rank(points: Sequence[PointFigures]) -> Ranking:
    """Find the best point and compare the others with it."""
    usable = [p for p in points if p.items_per_s_total is not None and p.validity != "INVALID"]
    items = {point.item for point in usable}
    if not usable or len(items) > 1:
        differ = f"points count different things ({', '.join(sorted(items))})"
        return Ranking(best=None, missing=differ if usable else "nothing was measured", against_best={})
    best = max(usable, key=_rate)
    num_pairs = max(1, len(usable) * (len(usable) - 1) // 2)
    confidence = 1 - (1 - CONFIDENCE) / num_pairs
    compared = {p.case_id: _compare(p, best, confidence=confidence) for p in usable if p is not best}
    return Ranking(best=best, missing=None, against_best=compared)


def _rate(point: PointFigures) -> float:
    assert point.items_per_s_total is not None
    return point.items_per_s_total


def _compare(point: PointFigures, best: PointFigures, *, confidence: float) -> AgainstBest:
    a, b = best.launches, point.launches
    if min(len(a), len(b)) < MIN_LAUNCHES:
        return AgainstBest(comparison=None, missing=TOO_FEW)
    if not (best.are_replicates and point.are_replicates):
        return AgainstBest(comparison=None, missing=FORKED)
    rates = [[launch.value for launch in launches] for launches in (a, b)]
    found = compare_launches(*rates, better="higher", confidence=confidence)
    return AgainstBest(comparison=found, missing=found.reason)


def batch_limits(points: Sequence[PointFigures], ranking: Ranking, *, key: str) -> BatchLimits:
    """Read the limits off a search over `key`, whose values are batch sizes."""
    fit = [point for point in points if point.launches and not point.refused]
    best = ranking.best
    near = [point for point in fit if best is not None and _rate(point) >= NEAR_BEST * _rate(best)]
    return BatchLimits(
        largest=max((point.assignment[key] for point in fit), default=None),
        too_large=min((point.assignment[key] for point in points if point.refused), default=None),
        knee=min(near, key=lambda point: int(point.assignment[key]), default=None),
    )


def describe_comparison(point: PointFigures, ranking: Ranking) -> str:
    """Say in words how a point stands to the best one; "" where they cannot stand beside each other."""
    against = ranking.against_best.get(point.case_id)
    if against is None or ranking.best is None:
        return ""
    change = f"{_rate(point) / _rate(ranking.best) - 1:+.1%}"
    found = against.comparison
    if found is None or found.ratio is None:
        return f"{change}; cannot tell"
    if found.verdict == "no difference shown":
        assert found.min_detectable is not None
        return f"{change}; no difference shown (one of {found.min_detectable:.1%} would show)"
    return f"{change}; {found.verdict} at {CONFIDENCE:.0%}, all pairs together"
