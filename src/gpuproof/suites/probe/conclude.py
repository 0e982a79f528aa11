"""Compute results of a probe: values for every device, link and host, and the outliers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from gpuproof.base import units
from gpuproof.config.models import RunConfig
from gpuproof.launches.explanations import LaunchExplanation, explain_launch, readings_by_launch
from gpuproof.launches.limits import communication_limit
from gpuproof.launches.probes import FINGERPRINT, WRONG_VALUES, ProbeLaunch, ProbeValue, summarize_probe
from gpuproof.readings.evidence import Evidence
from gpuproof.readings.limits import LaunchLimits, with_readings
from gpuproof.records.codec import to_json
from gpuproof.records.outcome import Judged, not_applicable, pass_or_fail
from gpuproof.records.result import Better, Doubt, LaunchValue, Measure
from gpuproof.statistics.estimate import Interval, Unavailable
from gpuproof.statistics.launches import interval_of_mean, interval_of_rates
from gpuproof.suites.base import Conclusion, Export, launch_key
from gpuproof.suites.probe.fingerprints import FingerprintFindings, conclude_fingerprints
from gpuproof.suites.results import benchmark_result, csv_text, positions_in_time, with_interval
from gpuproof.suites.sections import Common, notes_of_setup, read_during, torn_notes, without_effect
from gpuproof.verdict.doubts.base import Measured
from gpuproof.verdict.doubts.rules import doubts_about, doubts_about_readings, invalid_first, joined_doubts

CSV_FILE = "probe.csv"
BETTER: Mapping[str, Better] = {"B/s": "higher", "share": "higher"}
"""Units for which higher is better. For all other units (wrong values, seconds), lower is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeDetail:
    """Data for a probe's page that is not part of the result."""

    common: Common


def conclude(evidence: Evidence) -> Conclusion:
    """Return the result of a probe, and its results file."""
    config = evidence.config
    probes = [probe for one in evidence.launches if (probe := summarize_probe(one)) is not None]
    measured = [probe for probe in probes if probe.launch is not None]
    explanations = [
        explain_launch(probe.launch, evidence)
        for probe in measured
        if probe.launch is not None and probe.records.case.monitor is not None
    ]
    prints = conclude_fingerprints(probes)
    measures = [*_measures(probes, evidence), *prints.measures]
    detail = ProbeDetail(common=_common(config, measured, explanations, evidence))
    result = benchmark_result(
        "probe",
        evidence,
        measures=measures,
        doubts=invalid_first([*_doubts(measured), *prints.doubts, *doubts_about_readings(explanations)]),
        failures=tuple(f for one in evidence.launches if one.status != "done" and (f := one.primary_failure)),
        num_launches=len(measured),
        num_planned=_num_places(evidence) * config.run.repeats - (len(probes) - len(measured)),
        conditions=_conditions(config, measured),
        detail=to_json(detail),
        headline_text=_headline(measures, prints),
        limits=_limits(config, measured, explanations),
    )
    outcomes = (*_inapplicable(probes, config), *_wrong(measures), *prints.outcomes)
    rows = [_csv_row(measure) for measure in measures if measure.name != FINGERPRINT]
    exports = (Export(name=CSV_FILE, content=csv_text(rows)),) if rows else ()
    return Conclusion(result=replace(result, outcomes=outcomes), exports=exports)


def _limits(
    config: RunConfig, probes: Sequence[ProbeLaunch], explanations: Sequence[LaunchExplanation]
) -> list[LaunchLimits]:
    read, name = readings_by_launch(explanations), config.probe.name
    limits = LaunchLimits(found=(), unknown=f"the {name} probe has no single rate for one kind of work")
    if name in ("link", "nccl_tests"):
        limits = communication_limit("its steps only copy data")
    return [with_readings(limits, read.get(launch_key(probe.records.case), ())) for probe in probes]


def _num_places(evidence: Evidence) -> int:
    """Count the locations planned for the probe: one per host, or one for all hosts together."""
    return max(1, len(evidence.hosts)) if evidence.config.distributed.nodes == 1 else 1


def _doubts(launches: Sequence[ProbeLaunch]) -> list[Doubt]:
    return joined_doubts(
        [
            doubts_about(Measured(launch=probe.launch, probe=probe))
            for probe in launches
            if probe.launch is not None
        ]
    )


def _measures(launches: Sequence[ProbeLaunch], evidence: Evidence) -> Iterator[Measure]:
    """Yield each value across launches that have it, except digests, which are compared separately."""
    places = positions_in_time(evidence.launches)
    same: dict[tuple[Any, ...], list[tuple[ProbeLaunch, ProbeValue]]] = {}
    for launch in launches:
        for value in launch.values:
            if value.quantity != FINGERPRINT:
                same.setdefault(value.key, []).append((launch, value))
    for figures in same.values():
        measured = [(launch.records.case, value) for launch, value in figures if value.value is not None]
        yield _measure(
            [value for _, value in figures],
            tuple(
                LaunchValue(
                    replicate=case.replicate,
                    order=places[launch_key(case)],
                    value=value.value or 0.0,
                    start=case.start,
                )
                for case, value in measured
            ),
        )


def _measure(figures: Sequence[ProbeValue], launches: tuple[LaunchValue, ...]) -> Measure:
    first, values = figures[0], [launch.value for launch in launches]
    value = (sum(values) if first.quantity == WRONG_VALUES else fmean(values)) if values else None
    better = BETTER.get(first.unit, "lower")
    measure = with_interval(
        first.quantity,
        value,
        first.unit,
        _text(value, first),
        _interval(figures, values),
        better=better,
        launches=launches,
    )
    if first.quantity == WRONG_VALUES or value is None:
        measure = replace(measure, interval=None, uncertainty=None, detail="; ".join(first.evidence))
    evidence = "; ".join(dict.fromkeys(line for figure in figures for line in figure.evidence))
    return replace(
        measure,
        subject=first.subject,
        labels=first.labels,
        statistic="sum" if first.quantity == WRONG_VALUES else "mean",
        num_samples=sum(len(figure.durations_s) for figure in figures) or len(values) or None,
        detail=evidence or measure.detail,
        missing=None if value is not None else first.missing,
    )


def _interval(figures: Sequence[ProbeValue], values: Sequence[float]) -> Interval | Unavailable:
    """Return the interval between launches; for one launch, the mean time's interval, as a bandwidth."""
    if len(values) != 1:
        return interval_of_rates(values)
    (value,), figure = values, next(figure for figure in figures if figure.value is not None)
    mean = interval_of_mean(figure.durations_s)
    if isinstance(mean, Unavailable) or figure.unit != "B/s":
        return mean
    low, high = value * mean.centre / mean.high, value * mean.centre / mean.low
    return replace(mean, low=low, high=high, centre=value)


def _text(value: float | None, of: ProbeValue) -> str:
    if value is None:
        return units.MISSING
    if of.unit == "B/s":
        return units.bandwidth(value)
    if of.unit == "share":
        return units.share(value)
    return units.seconds(value) if of.unit == "s" else f"{units.count(round(value))} {of.quantity}"


def _wrong(measures: Iterable[Measure]) -> Iterator[Judged]:
    """Yield whether all values in each subject's comparisons were correct, or how many were wrong."""
    by_subject: dict[str, list[Measure]] = {}
    for measure in measures:
        if measure.name == WRONG_VALUES and measure.value is not None and not _is_of_digests(measure):
            by_subject.setdefault(measure.subject, []).append(measure)
    for subject, comparisons in by_subject.items():
        num_wrong = sum(measure.value or 0.0 for measure in comparisons)
        worst = max(comparisons, key=lambda measure: measure.value or 0.0)
        detail = f": {worst.detail}" if num_wrong else ""
        outcome = pass_or_fail(
            subject,
            not num_wrong,
            f"{units.count(int(num_wrong))} wrong in {len(comparisons)} comparisons{detail}",
            expected="none",
            source="the values written, or the same product computed in 8-byte numbers on the host",
            next_step="Take the device out of service and send these records to its vendor",
            responsible="vendor",
            measured_value=num_wrong,
            expected_value=0.0,
            unit="1",
        )
        yield Judged(name=WRONG_VALUES, outcome=outcome)


def _is_of_digests(measure: Measure) -> bool:
    return "digests" in measure.labels


def _inapplicable(launches: Sequence[ProbeLaunch], config: RunConfig) -> Iterator[Judged]:
    """Yield what cannot be measured on this system, once per subject and reason."""
    seen = {
        (value.subject, value.missing or "", str(value.labels.get("dtype", "")))
        for launch in launches
        for value in launch.values
        if value.is_inapplicable
    }
    for subject, reason, dtype in sorted(seen):
        explanation = f"{dtype}: {reason}" if dtype else reason
        yield Judged(name=config.probe.name, outcome=not_applicable(explanation, subject))


def _headline(measures: Sequence[Measure], prints: FingerprintFindings) -> str:
    compared = [measure for measure in measures if measure.name == WRONG_VALUES and measure.value is not None]
    wrong = sum(measure.value or 0.0 for measure in compared)
    if prints.headline and not sum(
        measure.value or 0.0 for measure in compared if not _is_of_digests(measure)
    ):
        return prints.headline
    timed = [measure for measure in measures if measure.name != WRONG_VALUES and measure.value is not None]
    if wrong or not timed:
        return f"{units.count(int(wrong))} wrong values in {len(compared)} comparisons" if compared else ""
    shown = next((measure for measure in timed if measure.unit == "B/s"), timed[-1])
    slowest = min((m for m in timed if m.name == shown.name), key=lambda m: m.value or 0.0)
    of = f"; slowest of {len(timed)}: {slowest.text}" if len(timed) > 1 and shown.unit == "B/s" else ""
    return f"{shown.text} {shown.name}{of}"


def _csv_row(measure: Measure) -> dict[str, Any]:
    return {
        "quantity": measure.name,
        "subject": measure.subject,
        "labels": "; ".join(f"{key}={value}" for key, value in measure.labels.items()),
        "value": measure.value,
        "unit": measure.unit,
        "text": measure.text,
        "uncertainty": measure.uncertainty,
        "detail": measure.missing or measure.detail,
    }


def _common(
    config: RunConfig,
    launches: Sequence[ProbeLaunch],
    explanations: Sequence[LaunchExplanation],
    evidence: Evidence,
) -> Common:
    work = f"probe {config.probe.name}"
    measured = [probe.launch for probe in launches if probe.launch is not None]
    names = dict.fromkeys(setup.device.name for launch in measured for setup in launch.setups)
    hosts = len({window.host for launch in measured for window in launch.windows})
    title = f"{work}, {', '.join(names)}{f' on {hosts} hosts' if hosts > 1 else ''}" if names else work
    return Common(
        title=title,
        work=work,
        names_cases=len(evidence.hosts) > 1,
        not_applied=without_effect([launch.setup for launch in measured], evidence.description["origins"]),
        notes=(*notes_of_setup(measured), *torn_notes(evidence.launches)),
        **read_during(explanations),
    )


def _conditions(config: RunConfig, launches: Sequence[ProbeLaunch]) -> dict[str, object]:
    names = {
        setup.device.name for probe in launches if probe.launch is not None for setup in probe.launch.setups
    }
    return {
        "kind": "probe",
        "probe": config.probe.name,
        "device": next(iter(names)) if len(names) == 1 else None,
    }
