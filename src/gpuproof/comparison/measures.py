"""How do the launches of two runs differ in each measure, at one error rate for all measures?

In: the measures of both results. Out: for each measure with launches in both, the ratio B/A with its
interval, a verdict, the effect of outlier launches, the number of launches needed for a precision of ±1 %,
and the same comparison in cycles (time × mean SM clock of each launch). Separate runs are compared by Welch's
t-test, interleaved launches in pairs. If times differ but cycles do not, the clock is the cause. Memory-bound
and host-bound workloads do not scale with the SM clock; their cycles are reported unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt
from statistics import fmean, geometric_mean
from typing import Any

import numpy as np

from gpuproof.base.errors import RecordError
from gpuproof.comparison.winners import FORKED, ComparedSide, Pairing, compare_sides
from gpuproof.records.result import WHOLE, Better, Doubt, LaunchValue, Measure, Result
from gpuproof.statistics.comparison import Comparison, launches_for_ratio
from gpuproof.statistics.dispersion import outliers
from gpuproof.statistics.distributions import normal_quantile

CONFIDENCE = 0.95
"""Joint confidence level for all measures (Bonferroni correction: metrics of one GPU are correlated to an
unknown degree)."""
PRECISION = 0.01
"""The precision for which the required number of launches is reported."""
DoubtsAt = Callable[[str], tuple[Doubt, ...]]
"""Case → warnings about its results."""
MeasureKey = tuple[str, str, str, str, tuple[tuple[str, str], ...]]
ClocksByLaunch = Mapping[tuple[str, int], float]
"""Case and replicate → mean SM clock of the devices in that launch, in MHz."""
NOT_READ = "clocks were not read during every launch"
SAME_CLOCK = 0.001
"""Relative clock difference below which the clock cannot explain a difference between launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideValues:
    """One side of a measure."""

    value: float | None
    """The geometric mean over the launches, so that B divided by A is the ratio; the measure's own value if
    any launch is 0."""
    num_launches: int
    outlying: tuple[int, ...]
    """Replicates with an outlying value (modified Z-score over 3.5); none of them is excluded from any
    result."""
    launches: tuple[LaunchValue, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedMeasure:
    """One measure, compared between two runs."""

    name: str
    case: str
    subject: str
    statistic: str
    labels: Mapping[str, Any]
    unit: str
    better: Better
    a: SideValues
    b: SideValues
    comparison: Comparison
    without_outliers: Comparison | None
    """None if no launch is an outlier."""
    launches_for_one_percent: int | None
    """Launches needed per side, given this spread, to estimate a ratio to within ±1 %; None if unknown, or if
    no number is enough."""
    cycles: InCycles | None
    """None if the clocks are unknown."""
    confirmation: Comparison | None = None
    """Comparison of separate launches, if a gate confirmed a regression."""

    @property
    def title(self) -> str:
        """The name, with the case and subject if they add information."""
        more = [self.case] if self.case != "main" else []
        more += [self.subject] if self.subject != WHOLE else []
        return ", ".join([self.name, *more])


def measure_key(measure: Measure, left_out: Sequence[str] = ()) -> MeasureKey:
    """Identify a measure within a run, ignoring the labels in which the two runs are meant to differ."""
    labels = sorted((key, str(value)) for key, value in measure.labels.items() if key not in left_out)
    return measure.case, measure.subject, measure.name, measure.statistic, tuple(labels)


def measured(measures: Sequence[Measure], left_out: Sequence[str] = ()) -> dict[MeasureKey, Measure]:
    """Return measures with launches and a direction, even if several have the same launches."""
    return {
        measure_key(measure, left_out): measure
        for measure in measures
        if measure.launches and measure.better is not None
    }


def comparable(measures: Sequence[Measure], left_out: Sequence[str] = ()) -> dict[MeasureKey, Measure]:
    """Return measures with launches and a direction; if several have the same launches, the last one.

    This drops headlines, which repeat the value of a point.
    """
    by_launches = {
        (measure.subject, measure.case, measure.unit, measure.launches): measure
        for measure in measures
        if measure.launches and measure.better is not None
    }
    return {measure_key(measure, left_out): measure for measure in by_launches.values()}


def compare_measures(
    a: Mapping[MeasureKey, Measure],
    b: Mapping[MeasureKey, Measure],
    *,
    clocks: tuple[ClocksByLaunch, ClocksByLaunch],
    doubts: tuple[DoubtsAt, DoubtsAt],
    pairing: Pairing,
    refused: str | None = None,
) -> tuple[ComparedMeasure, ...]:
    """Compare every measure that both runs have; `refused` is the reason if none can be compared."""
    common = [key for key in a if key in b]
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(common))
    return tuple(
        _compared(a[key], b[key], clocks, doubts, pairing=pairing, confidence=confidence, refused=refused)
        for key in common
    )


def _compared(
    a: Measure,
    b: Measure,
    clocks: tuple[ClocksByLaunch, ClocksByLaunch],
    doubts: tuple[DoubtsAt, DoubtsAt],
    *,
    pairing: Pairing,
    confidence: float,
    refused: str | None,
) -> ComparedMeasure:
    assert a.better is not None
    sides = _paired(a.launches, b.launches) if pairing.is_interleaved else (a.launches, b.launches)
    values = _values(sides[0]), _values(sides[1])
    figures = [_figures(measure, side) for measure, side in zip((a, b), sides, strict=True)]
    comparison = compare_sides(
        ComparedSide(name="A", values=values[0], doubts=doubts[0](a.case)),
        ComparedSide(name="B", values=values[1], doubts=doubts[1](b.case)),
        better=a.better,
        confidence=confidence,
        pairing=pairing,
        figure=a.name,
        refused=refused or _reason_against(a, b),
    )
    has_ratio, compare = comparison.ratio is not None, pairing.comparing(a.better, confidence)
    mhz = [_clocks(a.case, side, by_launch) for side, by_launch in zip(sides, clocks, strict=True)]
    return ComparedMeasure(
        name=a.name,
        case=a.case,
        subject=a.subject,
        statistic=a.statistic,
        labels=a.labels,
        unit=a.unit,
        better=a.better,
        a=figures[0],
        b=figures[1],
        comparison=comparison,
        without_outliers=_without(sides, figures, pairing, comparison, a.better) if has_ratio else None,
        launches_for_one_percent=_needed(values, pairing, confidence) if has_ratio else None,
        cycles=in_cycles(sides, (mhz[0], mhz[1]), better=a.better, compare=compare) if has_ratio else None,
    )


def _paired(
    a: Sequence[LaunchValue], b: Sequence[LaunchValue]
) -> tuple[tuple[LaunchValue, ...], tuple[LaunchValue, ...]]:
    """Keep the launches whose paired launch also finished normally, in the order of the pairs."""
    first, second = ({launch.replicate: launch for launch in side} for side in (a, b))
    pairs = sorted(first.keys() & second.keys())
    return tuple(first[pair] for pair in pairs), tuple(second[pair] for pair in pairs)


def _clocks(case: str, launches: Sequence[LaunchValue], by_launch: ClocksByLaunch) -> list[float | None]:
    return [by_launch.get((case, launch.replicate)) for launch in launches]


def _values(launches: Sequence[LaunchValue]) -> list[float]:
    return [launch.value for launch in launches]


def _reason_against(a: Measure, b: Measure) -> str | None:
    for name, side in (("A", a), ("B", b)):
        if any(launch.start == "fork" for launch in side.launches):
            return f"{name}: its {FORKED}"
        if side.validity == "INVALID":
            return f"{name} is INVALID"
        if any(launch.value <= 0 for launch in side.launches):
            return f"{name} has a launch of {side.name} 0, for which no ratio exists"
    return None if a.unit == b.unit else f"A counts {a.unit}, B {b.unit}"


def _figures(measure: Measure, launches: Sequence[LaunchValue]) -> SideValues:
    values = _values(launches)
    outlying = outliers(values)
    return SideValues(
        value=geometric_mean(values) if values and min(values) > 0 else measure.value,
        num_launches=len(launches),
        outlying=tuple(launches[place].replicate for place in outlying.indices),
        launches=tuple(launches),
    )


def _without(
    sides: tuple[Sequence[LaunchValue], Sequence[LaunchValue]],
    figures: Sequence[SideValues],
    pairing: Pairing,
    compared: Comparison,
    better: Better,
) -> Comparison | None:
    """Compare without outlier launches; if one launch of a pair is an outlier, both are excluded."""
    outlying = [set(side.outlying) for side in figures]
    if not any(outlying):
        return None
    if pairing.is_interleaved:
        outlying = [outlying[0] | outlying[1]] * 2
    values = [
        [launch.value for launch in side if launch.replicate not in out]
        for side, out in zip(sides, outlying, strict=True)
    ]
    return replace(pairing, num_pilot=None).comparing(better, compared.confidence)(*values)


def _needed(values: tuple[list[float], list[float]], pairing: Pairing, confidence: float) -> int | None:
    """Return the launch count for ±1 %; None if sessions differ so much that no number is enough."""
    a, b = (np.log(side) for side in values)
    logs = (b - a, np.zeros(len(a))) if pairing.is_interleaved else (a, b)
    of_sessions = normal_quantile((1 + confidence) / 2) * sqrt(2) * pairing.between_sessions
    if of_sessions >= PRECISION:
        return None
    target = sqrt(PRECISION**2 - of_sessions**2)
    count = launches_for_ratio(*logs, relative_half_width=target, confidence=confidence)
    return count if isinstance(count, int) else None


def only_in_one(a: Mapping[MeasureKey, Measure], b: Mapping[MeasureKey, Measure]) -> Iterator[str]:
    """List the measures that only one of the sides has."""
    for name, side, other in (("A", a, b), ("B", b, a)):
        for key, measure in side.items():
            if key not in other:
                subject = "" if measure.subject == WHOLE else f" of {measure.subject}"
                yield f"{measure.name} at {measure.case}{subject} exists only in {name}"


def lost_in_b(a: Mapping[MeasureKey, Measure], b: Mapping[MeasureKey, Measure]) -> Iterator[str]:
    """Name the measures of A that B lacks although it has others of the same case and subject.

    Other cases and subjects (the steps of a search, another card) are not lost, only different.
    """
    places = {(measure.case, measure.subject) for measure in b.values()}
    for key, measure in a.items():
        if key not in b and (measure.case, measure.subject) in places:
            yield measure.name if measure.case == "main" else f"{measure.name}, {measure.case}"


@dataclass(frozen=True, slots=True, kw_only=True)
class InCycles:
    """A comparison in cycles of the device clock."""

    comparison: Comparison
    clock_ratio: float
    """Mean clock of B's launches, divided by that of A's launches."""


def clocks_of(result: Result) -> dict[tuple[str, int], float]:
    """Return the mean clock of each launch in which every device's clock was read."""
    rows: dict[tuple[str, int], list[float | None]] = {}
    try:
        for row in (result.detail.get("common") or {}).get("devices") or ():
            rows.setdefault((row["case_id"], row["replicate"]), []).append(row["clock_sm_mhz"])
        positive = {
            key: [clock for clock in clocks if clock and 0 < clock < inf] for key, clocks in rows.items()
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise RecordError(
            f"is damaged ({error!r})", place=f"{result.run_id}: result.json: devices"
        ) from error
    return {key: fmean(clocks) for key, clocks in positive.items() if len(clocks) == len(rows[key])}


def in_cycles(
    sides: tuple[Sequence[LaunchValue], Sequence[LaunchValue]],
    clocks: tuple[Sequence[float | None], Sequence[float | None]],
    *,
    better: Better,
    compare: Callable[[list[float], list[float]], Comparison],
) -> InCycles | None:
    """Compare cycles (duration × clock) or work per cycle (rate ÷ clock); None if a clock is unknown."""
    read = [[clock for clock in side if clock is not None] for side in clocks]
    if not all(read) or [len(side) for side in read] != [len(side) for side in sides]:
        return None
    values = [
        [
            launch.value * clock if better == "lower" else launch.value / clock
            for launch, clock in zip(side, side_clocks, strict=True)
        ]
        for side, side_clocks in zip(sides, read, strict=True)
    ]
    return InCycles(comparison=compare(*values), clock_ratio=fmean(read[1]) / fmean(read[0]))


def explained_by_clocks(compared: Comparison, ratio: InCycles | None) -> str:
    """Explain in one sentence what cycles add to a time comparison; "" if no explanation is needed."""
    if compared.verdict not in ("faster", "slower"):
        return ""
    if ratio is None:
        return f"not confirmed in cycles: {NOT_READ}"
    change = ratio.clock_ratio - 1
    clock = f"the clock of B was {abs(change):.1%} {'higher' if change > 0 else 'lower'}"
    if ratio.comparison.verdict == compared.verdict:
        moved = "" if abs(change) < SAME_CLOCK else f", though {clock}"
        return f"confirmed in cycles{moved}"
    if (change > 0) == (compared.verdict == "faster") and abs(change) >= SAME_CLOCK:
        return f"the clock is the cause: {clock}, and in cycles: {ratio.comparison.verdict}"
    return f"not confirmed in cycles ({ratio.comparison.verdict}), and the clock does not explain it: {clock}"
