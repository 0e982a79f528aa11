"""The files of several points: run_summary.json and summary.csv, whose rows are points, and all epochs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuproof.launches.point_figures import PEAK_MEMORY, STEP, WINDOW, PointFigures
from gpuproof.readings.evidence import Evidence
from gpuproof.records.codec import to_json
from gpuproof.records.result import Result
from gpuproof.suites.base import Export, TextContent
from gpuproof.suites.points.ranking import BatchLimits, Ranking, describe_comparison
from gpuproof.suites.results import csv_text, environment_facts, epochs_csv, json_export, wall_clock_s

if TYPE_CHECKING:
    from gpuproof.suites.points.results import PointResult

NOT_OF_A_POINT = (
    *("experiment_name", "run_id", "env", "notes", "commit_hash", "total_wall_clock_s"),
    *("flops_per_step", "flops_per_step_closed_form", "flops_per_step_counted", "flops_not_counted"),
    *("mfu", "mfu_peak", "bytes_per_s_per_device", "memory_bandwidth_use", "memory_peak"),
    *("measured_ceilings", "evaluations", "comm_exposed_ms", "comm_kernel_ms", "allreduce_standalone_ms"),
    *("communication_missing", "profile"),
)
"""Keys of a recipe's run_summary.json that stand above the points, or are told of a single recipe only."""


def exports_of_points(
    evidence: Evidence,
    points: Sequence[PointResult],
    ranking: Ranking,
    result: Result,
    *,
    limits: BatchLimits | None = None,
    is_ranked: bool,
) -> Iterator[Export]:
    """Yield the files; points that are not ranked are of several models."""
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
    """Yield the files of rows, of epochs and of points."""

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


def _row(point: PointFigures, ranking: Ranking, evidence: Evidence) -> dict[str, Any]:
    interval, step_s = None if point.rate is None else point.rate.interval, point.value(STEP)
    return {
        "experiment_name": evidence.config.run.experiment_name,
        "run_id": evidence.description["run_id"],
        "case": point.case_id,
        **{key: value_text(value) for key, value in point.assignment.items()},
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


def value_text(value: Any) -> str:
    """Write a swept value."""
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def outcome_text(point: PointFigures, ranking: Ranking) -> str:
    """Say what a point says: best, how it compares with the best one, or why it measured nothing."""
    if point.refused:
        return "out of memory, as was to be found"
    if point.failures:
        failure = point.failures[0]
        return f"{failure.cause.replace('_', ' ')}: {(failure.message.splitlines() or [''])[0]}"
    if not point.num_launches:
        return "not launched"
    is_best = ranking.best is not None and point.case_id == ranking.best.case_id
    return "best" if is_best else describe_comparison(point, ranking)
