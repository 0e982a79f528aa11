"""The report model: what a run says, in the order in which a person wants to know it.

Every form of a report (terminal, JSON, later Markdown and HTML) is drawn from this one value; none of
them computes anything.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import Any

from gpuproof import units
from gpuproof.analysis.explanations import LaunchExplanation
from gpuproof.analysis.launch import Launch
from gpuproof.analysis.run_summary import RunSummary
from gpuproof.analysis.validity import Finding, Validity
from gpuproof.records.parallel import plain_copies
from gpuproof.records.run import TRANSIENT_CAUSES, Failure, NotApplied
from gpuproof.report.data_measures import data_measures, data_notes
from gpuproof.report.fleet_model import FleetReport
from gpuproof.report.fleet_suite_model import FleetSuite
from gpuproof.report.latency import latency_measures
from gpuproof.report.load_row import LoadRow
from gpuproof.report.measure import Measure, interval_text, with_interval
from gpuproof.report.profiled import Profiled
from gpuproof.report.what_ran import WhatRan, what_ran
from gpuproof.report.work_measures import memory_measures, work_measures
from gpuproof.statistics.estimate import Interval
from gpuproof.statistics.percentiles import Percentile


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRow:
    """One launch in the table of launches."""

    replicate: int
    items_per_s_total: float | None
    """None in latency mode, where nothing is queued and the rate is no throughput."""
    mean_step_s: float
    num_steps: int
    window_s: float
    stop_reason: str
    case_id: str = "main"
    host: str | None = None
    """The inventory's name, in a fleet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointRow:
    """One point in the table of a sweep."""

    case_id: str
    assignment: Mapping[str, str]
    """Short name of each swept key → value as text."""
    items_per_s_total: float | None
    throughput: str
    uncertainty: str
    """Of the throughput, or nothing where there is no interval."""
    interval: Interval | None
    mean_step_s: float | None
    peak_allocated_bytes: int | None
    num_launches: int
    num_planned: int
    validity: Validity | None
    outcome: str
    """What the point says: best, how it compares with the best one, or why it measured nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsRow:
    """One window in the table of windows of requests."""

    case_id: str
    replicate: int
    scenario: str
    offered_per_s: float | None
    """Requests a second of the schedule; None where there is none."""
    answered_per_s: float
    num_requests: int
    num_failed: int
    p50_latency_s: float | None
    p99_latency_s: float | None
    """None with too few requests."""
    mean_batch: float | None
    busy_share: float | None
    """Of the window, with a batch under way."""
    bound: str | None
    """Whether the latency bound was met; None where none was set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportModel:
    """What a run says."""

    schema_version: int
    title: str
    run: str
    """The run directory."""
    validity: Validity | None
    measures: tuple[Measure, ...]
    launches: tuple[LaunchRow, ...]
    num_planned: int
    findings: tuple[Finding, ...]
    failures: tuple[Failure, ...]
    explanations: tuple[LaunchExplanation, ...]
    """What devices and host did in each launch's window; empty where nothing was read beside it."""
    not_applied: tuple[NotApplied, ...]
    """Keys that the user set and that changed nothing here."""
    notes: tuple[str, ...]
    files: tuple[str, ...]
    next_commands: tuple[str, ...]
    profile: Profiled | None = None
    """What the traced steps say, outside every figure."""
    points: tuple[PointRow, ...] = ()
    """Of a sweep; empty for a run of one point."""
    requests: tuple[RequestsRow, ...] = ()
    """Of the kind serving; empty for others."""
    what_ran: WhatRan | None = None
    """What the steps were made of; None where nothing was measured."""
    fleet: FleetReport | FleetSuite | None = None
    """Host by host, where the run was one on each of several."""
    tests: tuple[LoadRow, ...] = ()
    """Of the load suite, in the place of its points; empty for every other run."""


def build_report(
    summary: RunSummary,
    *,
    run: str,
    description: Mapping[str, Any],
    files: Sequence[str],
    explanations: Sequence[LaunchExplanation] = (),
    torn: Sequence[str] = (),
    profile: Profiled | None = None,
) -> ReportModel:
    """Build the report of a run from its summary and its description (run.json)."""
    first = summary.launches[0] if summary.launches else None
    config = description["config"]
    ran = what_ran(first) if first else None
    return ReportModel(
        schema_version=1,
        title=_title(summary, config),
        run=run,
        validity=summary.validity,
        measures=(*_measures(summary), *_energy_measures(summary, explanations)),
        launches=launch_rows(summary.launches),
        num_planned=summary.num_planned,
        findings=summary.findings,
        failures=summary.failures,
        explanations=tuple(explanations),
        not_applied=_set_by_user(first.setup.not_applied, description) if first else (),
        notes=(
            *(first.setup.notes if first else ()),
            *(ran.notes if ran else ()),
            *(data_notes(first) if first else ()),
            *_notes(summary),
            *torn,
        ),
        files=tuple(files),
        next_commands=next_commands(
            summary.failures, run=run, is_complete=len(summary.launches) >= summary.num_planned
        ),
        profile=profile,
        what_ran=ran,
    )


def launch_rows(launches: Sequence[Launch]) -> tuple[LaunchRow, ...]:
    """Make the rows of the table of launches."""
    return tuple(
        LaunchRow(
            replicate=launch.case.replicate,
            items_per_s_total=None if launch.case.measures_latency else launch.items_per_s_total,
            mean_step_s=launch.mean_step_s,
            num_steps=launch.slowest.num_steps,
            window_s=launch.slowest.wall_s,
            stop_reason=launch.slowest.stop_reason,
            host=launch.case.placement.host,
            case_id=launch.case.case_id,
        )
        for launch in launches
    )


def _title(summary: RunSummary, config: Mapping[str, Any]) -> str:
    parts = [f"{config['model']['name']} {_kind(summary, config)} on {config['data']['name']}"]
    if summary.launches:
        launch = summary.launches[0]
        ranks = f"{launch.world_size} × " if launch.world_size > 1 else ""
        parts.append(f"{ranks}{launch.setup.device.name}")
        if (shared := launch.setup.parallelism) is not None and shared != plain_copies(launch.world_size):
            parts.append(shared.describe())
        if launch.setup.device.kind == "cpu":
            parts.append(f"{launch.setup.threads} threads")
        parts.append(launch.setup.precision)
        parts.append(_batch(launch))
    return ", ".join(parts)


def _kind(summary: RunSummary, config: Mapping[str, Any]) -> str:
    """Say what ran: training, inference, and of inference what part and in which mode, if told."""
    kind = str(config["kind"])
    if kind == "training" or not summary.launches:
        return kind
    inference = summary.launches[0].case.inference
    phase = "" if inference.phase == "forward" else f" ({inference.phase})"
    return f"{kind}{phase}{' in latency mode' if inference.mode == 'latency' else ''}"


def _batch(launch: Launch) -> str:
    batch, per_sample = f"batch {launch.samples_per_step_total}", launch.setup.items_per_sample
    return batch if per_sample == 1 else f"{batch} × {per_sample} {launch.setup.item}"


def _measures(summary: RunSummary) -> list[Measure]:
    if not summary.launches:
        return []
    if summary.launches[0].case.measures_latency:
        return [*latency_measures(summary), *memory_measures(summary)]
    item = summary.launches[0].setup.item
    measures = [
        with_interval(
            "throughput",
            summary.items_per_s_total,
            f"{item}/s",
            units.rate(summary.items_per_s_total, item),
            summary.items_per_s_total_interval,
        )
    ]
    world_size = summary.launches[0].world_size
    if world_size > 1 and summary.items_per_s_total is not None:
        per_device = summary.items_per_s_total / world_size
        measures.append(
            Measure(
                name="per device",
                value=per_device,
                unit=f"{item}/s",
                text=units.rate(per_device, item),
                detail=f"total over {world_size} ranks",
            )
        )
    measures.append(
        Measure(
            name="mean step",
            value=summary.mean_step_s,
            unit="s",
            text=units.seconds(summary.mean_step_s),
            detail=f"{units.count(sum(launch.slowest.num_steps for launch in summary.launches))} steps "
            f"in {units.seconds(summary.window_s)}{_why_stopped(summary)}",
        )
    )
    measures += data_measures(summary)
    measures += _step_measures(summary)
    measures += work_measures(summary)
    return measures


def _why_stopped(summary: RunSummary) -> str:
    """Say why windows ended that were measured by precision; the others ended as they were told to."""
    if summary.launches[0].case.window.target_precision is None:
        return ""
    reasons = Counter(launch.slowest.stop_reason for launch in summary.launches)
    if len(reasons) == 1:
        return f"; {next(iter(reasons))}"
    return "; " + ", ".join(f"{reason} in {times} launches" for reason, times in reasons.items())


def _step_measures(summary: RunSummary) -> list[Measure]:
    measures = []
    for found in summary.step_percentiles:
        bound = ""
        if found.value is None and found.bound is not None and found.bound_q is not None:
            bound = f"; p{floor(found.bound_q)} is at most {units.seconds(found.bound)}"
        detail = f"{_needs(found)}{bound}" if found.reason else f"of {units.count(found.num_samples)} steps"
        if not found.num_samples:
            detail = "step times were not kept (benchmark.log_step_times is false)"
        interval = summary.step_s_interval
        if found.q == 50 and isinstance(interval, Interval) and found.value is not None:
            detail = interval_text(interval, "s")
        measures.append(
            Measure(
                name=f"p{found.q:g} step",
                value=found.value,
                unit="s",
                text=units.seconds(found.value),
                detail=detail,
                interval=interval if found.q == 50 and isinstance(interval, Interval) else None,
            )
        )
    return measures


def _needs(found: Percentile) -> str:
    return f"needs {units.count(found.num_needed)} steps, have {units.count(found.num_samples)}"


def _energy_measures(summary: RunSummary, explanations: Sequence[LaunchExplanation]) -> list[Measure]:
    energies = [explanation.energy_j for explanation in explanations]
    known = [energy for energy in energies if energy is not None]
    if not known or len(known) < len(summary.launches):
        return []
    item = summary.launches[0].setup.item
    per_item = sum(known) / summary.items_total
    text = f"{units.significant(per_item)} J/{item.removesuffix('s')}"
    return [
        Measure(
            name="energy", value=per_item, unit=f"J/{item}", text=text, detail=explanations[0].energy_text
        )
    ]


def _set_by_user(found: Sequence[NotApplied], description: Mapping[str, Any]) -> tuple[NotApplied, ...]:
    origins = description["origins"]
    return tuple(item for item in found if origins.get(item.key, "default") != "default")


def _notes(summary: RunSummary) -> list[str]:
    notes = []
    if len(summary.launches) == 1:
        notes.append(
            "one launch: its interval says nothing of the next one; to compare, set run.repeats to 3 or more"
        )
    if summary.launches and summary.launches[0].setup.device.kind == "cpu":
        notes.append("measured on the CPU: no figure of any GPU")
    if summary.launches and summary.launches[0].flops_per_step is None:
        notes.append(f"no FLOP/s: {summary.launches[0].setup.flops_not_counted}")
    return notes


def next_commands(failures: Sequence[Failure], *, run: str, is_complete: bool) -> tuple[str, ...]:
    """Return what a person may type next: to finish a run that is not complete, and to see it again."""
    quoted = shlex.quote(run)
    commands = [f"gpuproof report {quoted}"]
    if not is_complete:
        failed = any(failure.cause not in TRANSIENT_CAUSES for failure in failures)
        commands.insert(0, f"gpuproof run --resume {quoted}{' --retry-failed' if failed else ''}")
    return tuple(commands)
