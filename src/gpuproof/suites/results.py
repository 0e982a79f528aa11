"""Build a benchmark's result, measures and derived files in the same way for every suite.

Every result has the same fields and the same exit codes. A measure has a value, unit, text and uncertainty.
Files contain rows as CSV, or JSON as stored. The duration of a run is also computed here.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from math import ceil, log10
from typing import Any

from gpuproof.base import units
from gpuproof.base.errors import ExitCode
from gpuproof.launches.launch import Launch, summarize_launch
from gpuproof.launches.limits import limits_together
from gpuproof.launches.point_measures import THROUGHPUT
from gpuproof.launches.served import Served, summarize_requests
from gpuproof.readings.evidence import Evidence
from gpuproof.readings.limits import LaunchLimits
from gpuproof.records.case import ServingWork
from gpuproof.records.codec import to_json
from gpuproof.records.collected import CaseRecords
from gpuproof.records.result import (
    INCONCLUSIVE,
    NOTHING_MEASURED,
    Better,
    Doubt,
    LaunchValue,
    Measure,
    Result,
    Validity,
    worst,
)
from gpuproof.records.run import Environment, Failure, Start
from gpuproof.statistics.estimate import Interval, Unavailable, as_record
from gpuproof.statistics.percentiles import percentile
from gpuproof.suites.base import Export, JsonContent, LaunchKey, launch_key
from gpuproof.suites.sections import headline
from gpuproof.verdict.announced import CODE as LOST
from gpuproof.verdict.announced import lost_readings
from gpuproof.verdict.doubts.base import WRONG
from gpuproof.verdict.doubts.rules import invalid_first

MEDIAN_LATENCY = "p50 latency"
GOODPUT, ANSWERED = "goodput", "answered"
MEDIAN_FIRST_TOKEN, MEDIAN_TOKEN = "p50 time to first token", "p50 time per token"
OWNER = ("case", "replicate")
"""Keys of an epoch row that identify its launch."""
HOSTS_FOLDER = "hosts"
"""Folder in which the files of each of several hosts are stored."""


def benchmark_result(
    suite: str,
    evidence: Evidence,
    *,
    measures: Sequence[Measure],
    doubts: Sequence[Doubt],
    failures: Sequence[Failure],
    num_launches: int,
    num_planned: int,
    conditions: Mapping[str, Any],
    detail: Mapping[str, Any],
    headline_text: str | None = None,
    is_of_points: bool = False,
    limits: Sequence[LaunchLimits] = (),
) -> Result:
    """Return a benchmark's result; its worst warning determines its validity.

    With `is_of_points`, a failure is attributed to the point, not the machine, if any launch was measured.
    """
    doubts = _with_lost(doubts, evidence)
    limited = limits_together(limits, measures, "points" if is_of_points else "hosts")
    validity, verdict = _judged(doubts, num_launches, measures[:1] if headline_text is None else ())
    has_points = is_of_points and num_launches > 0
    code = exit_code_for(failures, validity, is_complete=num_launches >= num_planned, has_points=has_points)
    return Result(
        suite=suite,
        run_id=str(evidence.description["run_id"]),
        gpuproof_version=str(evidence.description["gpuproof_version"]),
        validity=validity,
        verdict=verdict,
        headline=headline(measures) if headline_text is None else headline_text,
        exit_code=ExitCode.FAILED if any(doubt.code == WRONG for doubt in doubts) else code,
        num_launches=num_launches,
        num_planned=num_planned,
        conditions=conditions,
        doubts=tuple(doubts),
        failures=tuple(failures),
        measures=(*measures, *limited),
        detail=detail,
    )


def _judged(
    doubts: Sequence[Doubt], num_launches: int, headlines: Sequence[Measure]
) -> tuple[Validity | None, str]:
    """Return validity and verdict; if nothing was measured, there is no verdict."""
    if not num_launches:
        return None, NOTHING_MEASURED
    validity = worst(doubts)
    lacks_headline = any(measure.value is None for measure in headlines)
    return (None, INCONCLUSIVE) if lacks_headline and validity != "INVALID" else (validity, validity)


def _with_lost(doubts: Sequence[Doubt], evidence: Evidence) -> Sequence[Doubt]:
    """Return the warnings, including those about lost readings; in a sweep, each point has its own."""
    has_lost = any(doubt.code == LOST for doubt in doubts)
    return doubts if has_lost else invalid_first([*doubts, *lost_readings(evidence)])


def shared_conditions(results: Sequence[Result]) -> dict[str, Any]:
    """Return the shared conditions of several results; conditions that differ are None."""
    measured = [result.conditions for result in results if result.num_launches] or [
        result.conditions for result in results
    ]
    return {
        key: value if all(other.get(key) == value for other in measured) else None
        for conditions in measured[:1]
        for key, value in conditions.items()
    }


def exit_code_for(
    failures: Sequence[Failure], validity: Validity | None, *, is_complete: bool, has_points: bool
) -> ExitCode:
    """Return 0 if a run measured what was requested, even with warnings, unless it is INVALID.

    Runs in which launches are missing without a failure (e.g. because the campaign was killed) are
    INCONCLUSIVE.
    """
    causes: set[str] = {failure.cause for failure in failures}
    if has_points and causes - {"interrupted", "disk_full"}:
        return ExitCode.FAILED
    if causes & {"environment", "disk_full"}:
        return ExitCode.UNFIT_ENVIRONMENT
    return exit_code_without_lack(causes, validity, is_complete=is_complete)


def exit_code_without_lack(causes: set[str], validity: Validity | None, *, is_complete: bool) -> ExitCode:
    """Return the exit code if no machine lacked anything."""
    for cause, code in (("timeout", ExitCode.TIMEOUT), ("interrupted", ExitCode.INTERRUPTED)):
        if causes == {cause}:
            return code
    if causes:
        return ExitCode.FAILED
    return ExitCode.DONE if is_complete and validity in ("VALID", "SUSPECT") else ExitCode.INCONCLUSIVE


def with_interval(
    name: str,
    value: float | None,
    unit: str,
    text: str,
    interval: Interval | Unavailable,
    *,
    better: Better | None,
    launches: tuple[LaunchValue, ...] = (),
    **fields: Any,
) -> Measure:
    """Return a measure of a value with its interval, or the reason why it has none.

    `fields` are additional fields of a measure; a `detail` among them replaces the interval's description.
    """
    spread = interval if isinstance(interval, Interval) else None
    reach = None if spread is None else spread.relative_reach
    words = (
        f"no interval: {interval.reason}"
        if isinstance(interval, Unavailable)
        else interval_text(interval, unit)
    )
    of_interval = {
        "detail": words,
        "num_samples": None if spread is None else spread.num_samples,
    }
    return Measure(
        name=name,
        value=value,
        unit=unit,
        text=text,
        uncertainty=None if reach is None else units.plus_minus(reach),
        better=better,
        launches=launches,
        interval=None if spread is None else as_record(spread),
        **{**of_interval, **fields},
    )


def rates_of_launches(records: Iterable[CaseRecords], launches: Sequence[Launch]) -> tuple[LaunchValue, ...]:
    """Return the throughput of each launch, with its position in time among all records."""
    positions = positions_in_time(records)
    return tuple(
        LaunchValue(
            replicate=launch.case.replicate,
            order=positions[launch_key(launch.case)],
            value=launch.figures[THROUGHPUT],
            start=launch.start,
        )
        for launch in launches
    )


def compared_values(records: CaseRecords) -> dict[str, float]:
    """Return the values by which one launch is compared with others; empty if it measured none.

    These are its throughput, or in latency mode its median latency in seconds, or for requests the metrics
    that users experience.
    """
    if isinstance(records.case.work, ServingWork):
        served = summarize_requests(records)
        return {} if served is None else _values_of_requests(served)
    launch = summarize_launch(records)
    if launch is None:
        return {}
    if not launch.case.measures_latency:
        return {THROUGHPUT: launch.figures[THROUGHPUT]}
    middle = percentile(launch.step_times_s, 50.0).value
    return {} if middle is None else {MEDIAN_LATENCY: middle}


def _values_of_requests(served: Served) -> dict[str, float]:
    """Return goodput or, in a closed loop, answered requests; and median times per token or request."""
    rates = {GOODPUT: served.goodput_per_s}
    if served.goodput_per_s is None and served.window.offered_per_s is None:
        rates = {ANSWERED: served.requests_per_s}
    times = {MEDIAN_FIRST_TOKEN: served.first_token_s, MEDIAN_TOKEN: served.token_s}
    if not served.first_token_s:
        times = {MEDIAN_LATENCY: served.latencies_s}
    middles = {name: percentile(times_s, 50.0).value for name, times_s in times.items()}
    measured = {name: rate for name, rate in rates.items() if rate is not None}  # a rate of 0 is measured
    return measured | {name: value for name, value in middles.items() if value}


def positions_in_time(launches: Iterable[CaseRecords]) -> dict[LaunchKey, int]:
    """Return each launch's position in chronological order, based on when its first rank started."""
    began = {
        launch_key(launch.case): min((start.unix_s for start in launch.of(Start)), default=0.0)
        for launch in launches
    }
    return {key: place for place, key in enumerate(sorted(began, key=lambda key: began[key]))}


def seconds_measure(name: str, value_s: float | None, detail: str, *, missing: str | None = None) -> Measure:
    """Return a duration as a measure; `missing` is the reason if there is none."""
    return Measure(
        name=name,
        value=value_s,
        unit="s",
        text=units.seconds(value_s),
        detail=detail,
        better="lower",
        missing=missing,
    )


def interval_text(interval: Interval, unit: str) -> str:
    """Format an interval with enough digits to distinguish its ends."""
    digits = _digits_that_show(interval)
    if unit == "s":
        low, high = (units.seconds(end, digits=digits) for end in (interval.low, interval.high))
    elif unit in units.STEPS:
        low, high = units.in_one_unit([interval.low, interval.high], unit, digits=digits)
        low = low.partition(" ")[0]
    else:
        low, high = (
            units.significant(interval.low, digits),
            f"{units.significant(interval.high, digits)} {unit}",
        )
    basis = f"{interval.num_launches} launches" if interval.between_launches else "within one launch"
    ends = units.NOT_WELL_ENOUGH if unit and interval.low <= 0 <= interval.high else f"{low} – {high}"
    return f"{interval.confidence:.0%} interval {ends} ({basis})"


def _digits_that_show(interval: Interval) -> int:
    """Return how many significant digits (3 to 6) are needed to distinguish the ends of an interval."""
    width = interval.relative_half_width
    return 3 if not width else min(6, max(3, 1 + ceil(-log10(width))))


def json_export(name: str, content: Any) -> Export:
    """Return a JSON file."""
    return Export(name=name, content=JsonContent(content))


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows, which must have the same keys, as CSV with a header; empty if there are no rows."""
    if not rows:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def epochs_csv(epoch_lines: str) -> str:
    """Return the rows of a metrics_epoch.jsonl as CSV: the columns of S1.27, then the launch's."""
    rows = [json.loads(line) for line in epoch_lines.splitlines()]
    return csv_text([{**{key: row[key] for key in row if key not in OWNER}, **_owner(row)} for row in rows])


def _owner(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in OWNER}


def failures_json(failures: Iterable[Failure]) -> list[dict[str, Any]]:
    """Return failures in export form, with each device's progress if it is available."""
    rows = to_json(list(failures))
    return [{key: value for key, value in one.items() if key != "progress" or value} for one in rows]


def wall_clock_s(launches: Sequence[CaseRecords]) -> float | None:
    """Sum, over launches, the longest time that a rank needed from its first record to its result."""
    return sum(launch.taken_s or 0.0 for launch in launches) or None


def environment_facts(
    launches: Sequence[CaseRecords], *, by_inventory: bool = False
) -> dict[str, Any] | None:
    """Return each host's environment, keyed by its own or inventory name; None if no host has one."""
    return {
        (by_inventory and launch.case.placement.host) or environment.host: environment.facts
        for launch in launches
        for environment in launch.of(Environment)
    } or None
