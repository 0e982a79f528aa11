"""The report and the derived files of a sweep: a row a point, the best one, and what a search found.

In: the config, the records of all launches and what was observed beside them. Out: the same `ReportModel` as
that of a single recipe, with points; and run_summary.json and summary.csv, whose rows are points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuproof import units
from gpuproof.analysis.explanations import LaunchExplanation, findings_of_faults
from gpuproof.analysis.run_summary import RunSummary, summarize
from gpuproof.analysis.sweep import (
    BatchLimits,
    PointSummary,
    SweepSummary,
    batch_limits,
    describe_comparison,
    summarize_sweep,
)
from gpuproof.analysis.validity import Finding, worst
from gpuproof.config.matrix import matrix_axes
from gpuproof.config.models import RunConfig
from gpuproof.hardware import peak_of
from gpuproof.records.codec import to_json
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Failure
from gpuproof.report.measure import Measure, with_interval
from gpuproof.report.model import PointRow, ReportModel, launch_rows, next_commands
from gpuproof.report.seed_formats import csv_of, epoch_lines, summary_json
from gpuproof.statistics.estimate import Interval
from gpuproof.suites.batch_ladder import KEY as BATCH_KEY
from gpuproof.suites.matrix import Point, short_names
from gpuproof.suites.plan import is_expected_failure, num_launches_left, points_of

OF_THE_RUN = ("experiment_name", "run_id", "env", "notes", "commit_hash", "total_wall_clock_s")
"""Keys of run_summary.json that are the same for every point, and stand above them."""
NOT_RANKED = "the tests of the load suite are of different models and kinds of work, which are not ranked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A sweep with what its report is made from."""

    config: RunConfig
    points: Mapping[str, Point]
    summary: SweepSummary
    limits: BatchLimits | None
    """None for a matrix."""
    num_planned: int
    """Launches that the suite has asked for so far, without those that had to fail."""

    @property
    def measured(self) -> list[PointSummary]:
        """The points with figures."""
        return [point for point in self.summary.points if point.summary.launches]


def sweep_of(
    config: RunConfig, cases: Sequence[CaseRecords], explanations: Sequence[LaunchExplanation]
) -> Sweep:
    """Summarise every point; faults in the readings beside a launch are doubts about its point."""
    points = {point.case_id: point for point in points_of(config, cases)}
    settled = [records for records in cases if records.status != "unfinished"]
    refused = [records for records in cases if is_expected_failure(config, records)]
    summaries = []
    for case_id, point in points.items():
        launched = [records for records in cases if records.case.case_id == case_id]
        is_refused = any(records in refused for records in launched)
        figures = summarize(
            launched,
            num_planned=len(launched) if is_refused else config.run.repeats,
            peak_of=peak_of,
            observed=findings_of_faults([e for e in explanations if e.case_id == case_id]),
        )
        summaries.append(
            PointSummary(
                case_id=case_id,
                assignment=point.assignment,
                summary=replace(figures, failures=()) if is_refused else figures,
                refused=is_refused,
            )
        )
    summary = (
        SweepSummary(points=tuple(summaries), best=None, best_missing=NOT_RANKED)
        if config.kind == "load"
        else summarize_sweep(summaries)
    )
    return Sweep(
        config=config,
        points=points,
        summary=summary,
        limits=None if config.search.kind is None else batch_limits(summary, key=BATCH_KEY),
        num_planned=len(settled) - len(refused) + num_launches_left(config, settled),
    )


def build_sweep_report(
    sweep: Sweep,
    *,
    run: str,
    description: Mapping[str, Any],
    files: Sequence[str],
    explanations: Sequence[LaunchExplanation],
    torn: Sequence[str],
) -> ReportModel:
    """Build the report of a sweep."""
    launches = [launch for point in sweep.measured for launch in point.summary.launches]
    failures = tuple(failure for point in sweep.summary.points for failure in _failures(point))
    return ReportModel(
        schema_version=1,
        title=_title(sweep),
        run=run,
        validity=worst([f for point in sweep.measured for f in point.summary.findings]) if launches else None,
        measures=tuple(_measures(sweep)),
        launches=launch_rows(launches),
        num_planned=sweep.num_planned,
        findings=tuple(findings_of_sweep(sweep)),
        failures=failures,
        explanations=tuple(explanations),
        not_applied=tuple(
            found
            for found in (launches[0].setup.not_applied if launches else ())
            if description["origins"].get(found.key, "default") != "default"
        ),
        notes=(*_notes(sweep), *torn),
        files=tuple(files),
        next_commands=next_commands(failures, run=run, is_complete=len(launches) >= sweep.num_planned),
        points=tuple(_row(point, sweep) for point in sweep.summary.points),
    )


def what_is_swept(sweep: Sweep) -> str:
    """Name the work and the keys that are swept."""
    config = sweep.config
    swept = (
        f"{len(sweep.points)} points of {' × '.join(matrix_axes(config.matrix))}"
        if config.matrix
        else f"{len(sweep.points)} batch sizes"
    )
    return f"{config.model.name} {config.kind} on {config.data.name}, {swept}"


def _title(sweep: Sweep) -> str:
    what = what_is_swept(sweep)
    launch = next((launch for point in sweep.measured for launch in point.summary.launches), None)
    return what if launch is None else f"{what}, {launch.setup.device.name}"


def _failures(point: PointSummary) -> list[Failure]:
    return [
        replace(failure, message=f"at {point.case_id}: {failure.message}")
        for failure in point.summary.failures
    ]


def findings_of_sweep(sweep: Sweep) -> list[Finding]:
    """Say the same doubt of several points once, with the point that it was first found at."""
    found: dict[str, list[tuple[Finding, str]]] = {}
    for point in sweep.measured:
        for finding in point.summary.findings:
            found.setdefault(finding.code, []).append((finding, point.case_id))
    findings = []
    for same in found.values():
        first, case_id = min(same, key=lambda item: item[0].validity != "INVALID")
        more = f", and at {len(same) - 1} more" if len(same) > 1 else ""
        findings.append(replace(first, reason=f"{first.reason} (at {case_id}{more})"))
    return sorted(findings, key=lambda finding: finding.validity != "INVALID")


def _measures(sweep: Sweep) -> list[Measure]:
    best = sweep.summary.best
    measures = []
    if best is not None:
        summary = best.summary
        item = summary.launches[0].setup.item
        fastest = with_interval(
            "best throughput",
            summary.items_per_s_total,
            f"{item}/s",
            units.rate(summary.items_per_s_total, item),
            summary.items_per_s_total_interval,
        )
        measures.append(replace(fastest, detail=f"at {best.case_id}; {fastest.detail}"))
    if sweep.limits is not None:
        measures += _limits(sweep.limits)
    return measures


def _limits(limits: BatchLimits) -> list[Measure]:
    beyond = (
        "no batch that was tried ran out of memory"
        if limits.too_large is None
        else f"{units.count(limits.too_large)} ran out of memory"
    )
    measures = [
        Measure(
            name="largest that fits",
            value=limits.largest,
            unit="samples",
            text="none" if limits.largest is None else f"batch {units.count(limits.largest)}",
            detail=beyond,
        )
    ]
    if limits.knee is not None:
        batch = limits.knee.assignment[BATCH_KEY]
        measures.append(
            Measure(
                name="knee",
                value=batch,
                unit="samples",
                text=f"batch {units.count(batch)}",
                detail="the smallest batch with 95 % of the best throughput",
            )
        )
    return measures


def _notes(sweep: Sweep) -> list[str]:
    notes = []
    if sweep.summary.best_missing not in (None, NOT_RANKED) and sweep.measured:
        notes.append(f"no best point: {sweep.summary.best_missing}")
    reasons = [point.not_compared for point in sweep.summary.points if point.not_compared]
    notes += [f"points were not compared: {reason}" for reason in dict.fromkeys(reasons)]
    if sweep.config.matrix:
        notes.append(
            f"points were launched in an order shuffled by run.order_seed={sweep.config.run.order_seed}"
        )
    launches = [launch for point in sweep.measured for launch in point.summary.launches]
    if launches:
        notes += launches[0].setup.notes
        if launches[0].setup.device.kind == "cpu":
            notes.append("measured on the CPU: no figure of any GPU")
    return notes


def _row(point: PointSummary, sweep: Sweep) -> PointRow:
    summary = point.summary
    interval = summary.items_per_s_total_interval
    known = interval if isinstance(interval, Interval) else None
    reach = None if known is None else known.relative_reach
    names = short_names(list(point.assignment))
    item = summary.launches[0].setup.item if summary.launches else ""
    return PointRow(
        case_id=point.case_id,
        assignment={names[key]: _text(value) for key, value in point.assignment.items()},
        items_per_s_total=summary.items_per_s_total,
        throughput=units.rate(summary.items_per_s_total, item),
        uncertainty="" if reach is None else f"±{units.share(reach)}",
        interval=known,
        mean_step_s=summary.mean_step_s,
        peak_allocated_bytes=_peak_bytes(summary),
        num_launches=len(summary.launches),
        num_planned=summary.num_planned,
        validity=summary.validity,
        outcome=_outcome(point, sweep.summary.best),
    )


def _outcome(point: PointSummary, best: PointSummary | None) -> str:
    if point.refused:
        return "out of memory, as was to be found"
    if point.summary.failures:
        failure = point.summary.failures[0]
        return f"{failure.cause.replace('_', ' ')}: {(failure.message.splitlines() or [''])[0]}"
    if not point.summary.launches:
        return "not launched"
    if best is None:
        return ""
    return "best" if point.case_id == best.case_id else describe_comparison(point, best)


def _peak_bytes(summary: RunSummary) -> int | None:
    peaks = [w.peak_allocated_bytes for launch in summary.launches for w in launch.windows]
    return max((peak for peak in peaks if peak is not None), default=None)


def _text(value: Any) -> str:
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def sweep_epoch_lines(sweep: Sweep) -> str:
    """Return metrics_epoch.jsonl of all points."""
    return "".join(
        epoch_lines(
            point.summary.launches,
            samples_per_epoch=sweep.points[point.case_id].config.data.samples_per_epoch,
        )
        for point in sweep.summary.points
    )


def sweep_csv(sweep: Sweep, *, description: Mapping[str, Any]) -> str:
    """Return summary.csv: one row a point."""
    rows = []
    for point in sweep.summary.points:
        row, figures = _row(point, sweep), point.summary
        rows.append(
            {
                "experiment_name": description["config"]["run"]["experiment_name"],
                "run_id": description["run_id"],
                "case": point.case_id,
                **{key: _text(value) for key, value in point.assignment.items()},
                "launches": row.num_launches,
                "item": figures.launches[0].setup.item if figures.launches else None,
                "throughput_items_per_s": row.items_per_s_total,
                "throughput_low": row.interval.low if row.interval else None,
                "throughput_high": row.interval.high if row.interval else None,
                "mean_step_ms": None if row.mean_step_s is None else row.mean_step_s * 1e3,
                "measured_time_s": figures.window_s if figures.launches else None,
                "peak_allocated_bytes": row.peak_allocated_bytes,
                "validity": row.validity,
                "outcome": row.outcome,
            }
        )
    return csv_of(rows)


def sweep_json(
    sweep: Sweep, *, description: Mapping[str, Any], environment: Any, wall_clock_s: float | None
) -> dict[str, Any]:
    """Return run_summary.json: what holds for the run, then its points."""
    points = [_point_json(point, sweep, description) for point in sweep.summary.points]
    best = sweep.summary.best
    of_best = next((found for found in points if best and found["case_id"] == best.case_id), {})
    return {
        "experiment_name": description["config"]["run"]["experiment_name"],
        "run_id": description["run_id"],
        "kind": description["config"]["kind"],
        "model": None if sweep.config.kind == "load" else description["config"]["model"]["name"],
        "throughput_samples_per_s": of_best.get("throughput_samples_per_s"),
        "best": None if best is None else best.case_id,
        "best_missing": sweep.summary.best_missing,
        "largest_batch_that_fits": sweep.limits.largest if sweep.limits else None,
        "smallest_batch_out_of_memory": sweep.limits.too_large if sweep.limits else None,
        "knee": sweep.limits.knee.case_id if sweep.limits and sweep.limits.knee else None,
        "validity": worst([f for p in sweep.measured for f in p.summary.findings])
        if sweep.measured
        else None,
        "num_launches": sum(len(point.summary.launches) for point in sweep.measured),
        "num_planned": sweep.num_planned,
        "total_wall_clock_s": wall_clock_s,
        "commit_hash": description["commit_hash"],
        "env": environment,
        "notes": description["config"]["run"]["notes"],
        "points": points,
    }


def _point_json(point: PointSummary, sweep: Sweep, description: Mapping[str, Any]) -> dict[str, Any]:
    own = {**description, "config": sweep.points[point.case_id].config.model_dump(mode="json")}
    figures = summary_json(point.summary, description=own, environment=None, wall_clock_s=None)
    return {
        "case_id": point.case_id,
        "assignment": dict(point.assignment),
        "out_of_memory": point.refused,
        "against_best": to_json(point.against_best),
        "not_compared": point.not_compared,
        **{key: value for key, value in figures.items() if key not in OF_THE_RUN},
    }
