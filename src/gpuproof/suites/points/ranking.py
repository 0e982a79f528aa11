"""Rank the points of a sweep or tests of a suite: the best, comparisons with it, and their files.

The input is each point's results. The output is the best point and comparisons with it, and for a batch-size
search also the largest batch that fits and the knee. A point is only compared if its launches are replicates.
The files are run_summary.json and summary.csv, with one row per point, and a file with all epochs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpuproof.base.units import would_show
from gpuproof.comparison.winners import FORKED, ComparedSide, compare_sides, contest
from gpuproof.launches.point_measures import PEAK_MEMORY, STEP, WINDOW, PointMeasures
from gpuproof.readings.evidence import Evidence
from gpuproof.records.codec import to_json
from gpuproof.records.result import Result
from gpuproof.records.work.command import setting_text
from gpuproof.statistics.comparison import MIN_LAUNCHES, Comparison
from gpuproof.suites.base import Export, TextContent
from gpuproof.suites.results import csv_text, environment_facts, epochs_csv, json_export, wall_clock_s

if TYPE_CHECKING:
    from gpuproof.suites.points.results import PointResult


CONFIDENCE = 0.95
"""Joint confidence for all comparisons of a sweep: the best point was picked using the data, so each pair
counts (Bonferroni's correction; Dunn 1961, https://doi.org/10.1080/01621459.1961.10482090)."""
TOO_FEW = f"each needs {MIN_LAUNCHES} launches, since two may differ by chance (run.repeats)"
NEAR_BEST = 0.95
"""Minimum fraction of the best throughput at the knee, which is the smallest batch that reaches it."""
NOT_OF_A_POINT = (
    *("experiment_name", "run_id", "env", "notes", "commit_hash", "total_wall_clock_s"),
    *("flops_per_step", "flops_per_step_closed_form", "flops_per_step_counted", "flops_not_counted"),
    *("mfu", "mfu_peak", "bytes_per_s_per_device", "memory_bandwidth_use", "memory_peak"),
    *("measured_ceilings", "evaluations", "comm_exposed_ms", "comm_kernel_ms", "allreduce_standalone_ms"),
    *("communication_missing", "profile"),
)
"""Keys of a recipe's run_summary.json that are one level above the points, or exist only for a single
recipe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainstBest:
    """Comparison of a point with the best one."""

    comparison: Comparison | None
    """The comparison; None if there is nothing to compare."""
    missing: str | None
    """Reason why there is no comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """All points of a sweep compared with the best one."""

    best: PointMeasures | None
    """The point with the highest throughput."""
    missing: str | None
    """Reason why no point can be called the best."""
    against_best: Mapping[str, AgainstBest]
    """Comparisons with the best point, for each point that can be compared with it."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Reasons, per point, why it can be neither the best nor worse than the best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """The result of a batch-size search."""

    largest: int | None
    """The largest batch size that fits; None if none fits."""
    too_large: int | None
    """The smallest batch size that ran out of memory; None if all fit."""
    knee: PointMeasures | None
    """The smallest batch with a throughput near the best."""


def side_of(point: PointMeasures) -> ComparedSide:
    """Return a point, represented by its rate, as one side of a comparison."""
    return ComparedSide(
        name=point.case_id,
        values=[launch.value for launch in point.launches],
        doubts=point.doubts,
        validity=point.validity,
        value=point.rate_value,
    )


def rank(points: Sequence[PointMeasures]) -> Ranking:
    """Find the best of the usable points and compare the others with it."""
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


def _rate(point: PointMeasures) -> float:
    value = point.rate_value
    assert value is not None
    return value


def _compare(point: PointMeasures, best: PointMeasures, *, confidence: float) -> AgainstBest:
    a, b = best.launches, point.launches
    if min(len(a), len(b)) < MIN_LAUNCHES:
        return AgainstBest(comparison=None, missing=TOO_FEW)
    if not (best.are_replicates and point.are_replicates):
        return AgainstBest(comparison=None, missing=FORKED)
    comparison = compare_sides(side_of(best), side_of(point), better="higher", confidence=confidence)
    return AgainstBest(comparison=comparison, missing=comparison.reason)


def batch_limits(points: Sequence[PointMeasures], ranking: Ranking, *, key: str) -> BatchLimits:
    """Determine the limits from a search over `key`, with batch sizes as its values."""
    fit = [point for point in points if point.num_launches and not point.refused]
    best = ranking.best
    usable = [point for point in fit if point.case_id not in ranking.left_out]
    near = [point for point in usable if best is not None and _rate(point) >= NEAR_BEST * _rate(best)]
    return BatchLimits(
        largest=max((point.assignment[key] for point in fit), default=None),
        too_large=min((point.assignment[key] for point in points if point.refused), default=None),
        knee=min(near, key=lambda point: int(point.assignment[key]), default=None),
    )


def describe_comparison(point: PointMeasures, ranking: Ranking) -> str:
    """Describe how a point compares to the best one; "" if the two cannot be compared."""
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
    return f"{change}; {comparison.verdict} at {CONFIDENCE:.0%} for all pairs together"


def exports_of_points(
    evidence: Evidence,
    points: Sequence[PointResult],
    ranking: Ranking,
    result: Result,
    *,
    limits: BatchLimits | None = None,
    is_ranked: bool,
) -> Iterator[Export]:
    """Yield the files of the run; points that are not ranked belong to different models."""
    yield from _rows(evidence, points, ranking)
    yield json_export(
        "run_summary.json",
        {
            "experiment_name": evidence.config.run.experiment_name,
            "run_id": evidence.description["run_id"],
            "kind": evidence.config.kind,
            "model": evidence.config.model.name if is_ranked else None,
            "throughput_samples_per_s": _best_summary(points, ranking).get("throughput_samples_per_s"),
            "best": None if ranking.best is None else ranking.best.case_id,
            "best_missing": ranking.missing,
            "largest_batch_that_fits": limits.largest if limits else None,
            "smallest_batch_out_of_memory": limits.too_large if limits else None,
            "knee": limits.knee.case_id if limits and limits.knee else None,
            "validity": result.validity,
            "num_launches": result.num_launches,
            "num_planned": result.num_planned,
            "total_wall_clock_s": wall_clock_s(evidence.launches),
            "commit_hash": evidence.description["commit_hash"],
            "env": environment_facts(evidence.launches),
            "notes": evidence.config.run.notes,
            "points": [_point_json(point, ranking) for point in points],
        },
    )


def _rows(evidence: Evidence, points: Sequence[PointResult], ranking: Ranking) -> Iterator[Export]:
    """Yield the file of all epochs, and the file of rows, one per point or epoch."""

    def epochs() -> str:
        return "".join(point.epochs() for point in points)

    def rows() -> str:
        if evidence.config.run.summary_csv == "epochs":
            return epochs_csv(epochs())
        return csv_text([_row(point.figures, ranking, evidence) for point in points])

    yield Export(name="metrics_epoch.jsonl", content=TextContent(epochs))
    yield Export(name="summary.csv", content=TextContent(rows))


def _best_summary(points: Iterable[PointResult], ranking: Ranking) -> Mapping[str, Any]:
    best = ranking.best
    return next((x.summary for x in points if best and x.figures.case_id == best.case_id), {})


def _point_json(point: PointResult, ranking: Ranking) -> dict[str, Any]:
    against = ranking.against_best.get(point.figures.case_id)
    return {
        "case_id": point.figures.case_id,
        "assignment": dict(point.figures.assignment),
        "out_of_memory": point.figures.refused,
        "against_best": None if against is None else to_json(against.comparison),
        "not_compared": ranking.left_out.get(point.figures.case_id) if against is None else against.missing,
        **{key: value for key, value in point.summary.items() if key not in NOT_OF_A_POINT},
    }


def _row(point: PointMeasures, ranking: Ranking, evidence: Evidence) -> dict[str, Any]:
    interval, step_s = None if point.rate is None else point.rate.interval, point.value(STEP)
    return {
        "experiment_name": evidence.config.run.experiment_name,
        "run_id": evidence.description["run_id"],
        "case": point.case_id,
        **{key: setting_text(value) for key, value in point.assignment.items()},
        "launches": point.num_launches,
        "item": point.item if point.num_launches else None,
        "throughput_items_per_s": point.rate_value,
        "throughput_low": interval.low if interval else None,
        "throughput_high": interval.high if interval else None,
        "mean_step_ms": None if step_s is None else step_s * 1e3,
        "measured_time_s": point.value(WINDOW),
        "peak_allocated_bytes": point.value(PEAK_MEMORY),
        "validity": point.validity,
        "outcome": outcome_text(point, ranking),
    }


def outcome_text(point: PointMeasures, ranking: Ranking) -> str:
    """Return a point's verdict: best, its comparison with the best, or why nothing was measured."""
    if point.refused:
        return "out of memory, as expected"
    if point.failures:
        failure = point.failures[0]
        return f"{failure.cause.replace('_', ' ')}: {(failure.message.splitlines() or [''])[0]}"
    if not point.num_launches:
        return "not launched"
    is_best = ranking.best is not None and point.case_id == ranking.best.case_id
    return "best" if is_best else describe_comparison(point, ranking)
