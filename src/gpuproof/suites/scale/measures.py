"""Results of a scaling study other than throughputs: speed-ups, parts of steps, and texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuproof.base import units
from gpuproof.launches.communication import ALONE
from gpuproof.records.collected import CaseRecords
from gpuproof.records.result import Better, Measure
from gpuproof.records.run import Environment
from gpuproof.statistics.dispersion import outliers_by_chance
from gpuproof.statistics.estimate import Interval, as_record
from gpuproof.suites.scale.breakdown import (
    LEAST_CORRELATION,
    MOST_LOSS,
    MOST_NORM,
    MOST_WEIGHT,
    WAYS,
    PointBreakdown,
)
from gpuproof.suites.scale.curves import FittedLaw, ScaleCurve
from gpuproof.suites.scale.plan import Law

if TYPE_CHECKING:
    from gpuproof.suites.scale.conclude import Average, ScaleRow, ScaleStudy


SPEED_UP, COMMUNICATION, PHASES = "speed-up", "communication", "phases"
LEARNING, MEMORY, OVERHEAD, PREDICTION = "learning", "memory", "overhead", "prediction"
EFFICIENCY = "efficiency"
PARTS_OF_A_STEP = ("data", "forward", "backward", "communication", "optimizer", "host gap")
LEARNING_ALIKE = "One device and several, trained alike"
ABOUT_LEARNING = (
    "ten steps from the same weights on the same samples, on all ranks and on a single one, "
    "without dropout, using plain SGD; the two count as equal if losses differ by less than "
    f"{MOST_LOSS}, norms of gradients correlate above {LEAST_CORRELATION} and differ by less than "
    f"{MOST_NORM:.0%}, and weights differ by less than {MOST_WEIGHT:g}"
)
LINK_PROBE = "copy speeds: gpuproof run probe --probe.name=link"


def study_measures(study: ScaleStudy) -> Iterator[Measure]:
    """Yield every result; the label `section` determines its table, and `quantity` its column."""
    for row in study.rows:
        yield from _speed_up(row)
    for point in study.apart:
        at = _Place(point.batch_size, point.num_devices, point.law, case=point.case_id)
        yield from _communication(point, at)
        yield from _phases(point, at)
        yield from _learning(point, at)
        yield from _memory(point, at)
    for curve in study.curves:
        yield from _overheads(curve)
        yield from _predictions(curve)


class _Place:
    """The point that a result belongs to: a batch size and a device count."""

    def __init__(self, batch_size: int, num_devices: int, law: Law | None, *, case: str = "main") -> None:
        self.labels = {"batch_size": batch_size, "num_devices": num_devices, "scaling": law}
        self.text = f"batch {batch_size} on {num_devices}"
        self.case = case

    def figure(
        self,
        section: str,
        quantity: str,
        value: float | None,
        unit: str,
        *,
        text: str | None = None,
        interval: Interval | None = None,
        missing: str | None = None,
        better: Better | None = None,
        **labels: Any,
    ) -> Measure:
        """Return a measure for this point."""
        return Measure(
            name=f"{quantity}, {self.text}",
            case=self.case,
            value=value,
            unit=unit,
            text=units.amount(value, unit) if text is None else text,
            statistic="mean of launches",
            labels={**self.labels, "section": section, "quantity": quantity, **labels},
            better=better,
            interval=None if interval is None else as_record(interval),
            missing=missing if value is None else None,
        )


def _speed_up(row: ScaleRow) -> Iterator[Measure]:
    speed = row.speed_up
    if speed is None or row.law is None:
        return
    at = _Place(row.batch_size, row.num_devices, row.law, case=row.figures.case_id)
    ratio, missing = speed.comparison.ratio, speed.comparison.reason
    text = units.MISSING if ratio is None else f"{ratio.centre:.2f} ×"
    measure = at.figure(SPEED_UP, SPEED_UP, speed.ratio, "1", text=text, interval=ratio, missing=missing)
    yield replace(
        measure,
        name=f"{row.law} speed-up, batch {row.batch_size} on {row.num_devices}",
        detail=speed.recommendation,
        statistic="ratio of geometric means",
        better="higher",
    )
    share = units.share(speed.efficiency)
    efficiency = at.figure(SPEED_UP, EFFICIENCY, speed.efficiency, "1", text=share, missing=missing)
    if (span := measure.interval) is not None:  # interval of the speed-up, divided by the number of devices
        low, high = (end / row.num_devices for end in (span.low, span.high))
        efficiency = replace(efficiency, interval=replace(span, low=low, high=high))
    yield efficiency


def _communication(point: PointBreakdown, at: _Place) -> Iterator[Measure]:
    """Yield a point's communication measures on several devices, each with its own name."""
    if point.num_devices == 1:
        return
    talk = point.communication
    for way, title in WAYS:
        time = getattr(talk, way)
        measure = at.figure(
            COMMUNICATION,
            way,
            time.mean_s,
            "s",
            interval=time.interval,
            missing=time.missing,
            better="lower",
            communication=way,
        )
        yield replace(measure, name=f"{title}, {at.text}")
    yield at.figure(COMMUNICATION, "bus bandwidth", talk.bus_bytes_per_s, "B/s")
    total = sum(talk.bucket_bytes)
    sizes = f"{len(talk.bucket_bytes)} of {units.memory(total)}" if talk.bucket_bytes else units.MISSING
    yield at.figure(COMMUNICATION, "buckets", total if talk.bucket_bytes else None, "B", text=sizes)


def _phases(point: PointBreakdown, at: _Place) -> Iterator[Measure]:
    phases = point.phases
    if phases is None:
        return
    parts: Mapping[str, float | None] = {
        **phases.parts_s,
        "communication": phases.communication_s,
        "sum": phases.sum_s,
        "residual": phases.residual_s,
    }
    for name, value in parts.items():
        yield at.figure(PHASES, name, value, "s", missing=phases.communication_missing)
    overhead = phases.mark_overhead
    yield at.figure(PHASES, "timing overhead", overhead, "1", text=units.share(overhead))


def _learning(point: PointBreakdown, at: _Place) -> Iterator[Measure]:
    alike = point.alike
    if alike is None or point.num_devices == 1:
        return
    figures = {
        "losses apart": (alike.loss_difference, f"{alike.loss_difference:.1e}"),
        "norms correlate": (
            alike.norm_correlation,
            units.MISSING if alike.norm_correlation is None else f"{alike.norm_correlation:.4f}",
        ),
        "weights apart": (alike.weight_difference, f"{alike.weight_difference:.1e}"),
    }
    for name, (value, text) in figures.items():
        yield at.figure(LEARNING, name, value, "1", text=text, is_alike=alike.is_alike)


def _memory(point: PointBreakdown, at: _Place) -> Iterator[Measure]:
    held = point.memory
    if held is None:
        return
    estimate = held.estimate
    sizes: Mapping[str, float | None] = {
        "parameters": estimate.parameters_bytes,
        "gradients": estimate.gradients_bytes,
        "optimizer": estimate.optimizer_bytes,
        "buckets": estimate.communication_bytes,
        "activations": held.activations_bytes,
        "together": held.expected_bytes,
        "measured peak": held.peak_bytes,
    }
    for name, size in sizes.items():
        yield at.figure(MEMORY, name, size, "B", missing=held.activations_missing)
    if held.peak_bytes is not None:
        over = held.peak_bytes / held.expected_bytes
        yield at.figure(MEMORY, "measured over expected", over, "1", text=f"{over:.2f} ×")
    if held.device_share is not None:
        share = units.share(held.device_share)
        yield at.figure(MEMORY, "of the device", held.device_share, "1", text=share)


def _overheads(curve: ScaleCurve) -> Iterator[Measure]:
    for one in curve.overheads:
        at = _Place(curve.batch_size, one.num_devices, curve.scaling)
        spread = one.overhead_s
        value = None if spread is None else spread.centre
        yield at.figure(OVERHEAD, "mean step", one.mean_step_s, "s")
        yield at.figure(OVERHEAD, "overhead", value, "s", interval=spread, missing=one.missing)
        share = units.share(one.share)
        yield at.figure(OVERHEAD, "of the step", one.share, "1", text=share, missing=one.missing)


def _predictions(curve: ScaleCurve) -> Iterator[Measure]:
    """Yield predictions for more devices; a curve across several hosts is interrupted and has none."""
    if curve.prediction is None:
        return
    for point in curve.prediction.points:
        at = _Place(curve.batch_size, point.num_devices, curve.scaling)
        share, law = point.efficiency, curve.prediction.law
        text = units.share(share.centre)
        measure = at.figure(PREDICTION, EFFICIENCY, share.centre, "1", text=text, interval=share, law=law)
        yield replace(measure, name=f"predicted {measure.name}", statistic="prediction")


def average_lines(averages: Sequence[Average]) -> Iterator[str]:
    """Yield the speed-up over all batch sizes, one line for each device count and law."""
    for average in averages:
        ratio = average.speed_up.comparison.ratio
        ratio_text = "" if ratio is None else f" {ratio.centre:.2f} × ({ratio.low:.2f} – {ratio.high:.2f})"
        yield f"{average.num_devices} devices, {average.law} scaling:{ratio_text} {average.conclusion}"


def law_lines(curve: ScaleCurve) -> Iterator[str]:
    """Report which laws a curve follows, where it breaks, and why nothing is predicted."""
    name = f"batch {curve.batch_size}, {curve.scaling}"
    for gap in curve.breaks:
        yield f"{name}: interrupted between {gap.before} and {gap.after} devices, {gap.reason}"
    reasons = {law.missing for law in curve.laws}
    if len(reasons) == 1 and None not in reasons:
        yield f"{name}: no law is fitted: {reasons.pop()}"
    else:
        yield from (f"{name}: {_law(law)}" for law in curve.laws)
    if curve.prediction is not None:
        trial = curve.prediction.trial
        yield (
            f"{name}: {curve.prediction.law}, without {trial.num_devices} devices, predicts an efficiency of "
            f"{units.share(trial.predicted.centre)} there, and {units.share(trial.measured)} was measured"
        )
    else:
        yield f"{name}: nothing is predicted: {curve.prediction_missing}"


def _law(law: FittedLaw) -> str:
    if law.fit is None:
        return f"no fit of {law.law}: {law.missing}"
    crosstalk = law.fit.crosstalk
    of_pairs = "" if crosstalk is None else f", κ {_plain(crosstalk)} for each pair of devices"
    return f"{law.law}: fraction that cannot be divided: σ {_plain(law.fit.serial)}{of_pairs}"


def _plain(interval: Interval) -> str:
    return f"{interval.centre:.3g} ({max(0.0, interval.low):.3g} – {interval.high:.3g})"


def about_communication(points: Sequence[PointBreakdown]) -> Iterator[str]:
    """Explain the three communication measures; empty if none was taken."""
    if all(point.communication.sync_difference.missing == ALONE for point in points):
        return
    yield (
        "three different values: added by averaging is what gradient averaging adds to a step (minus what "
        "the same code adds in a group of one); exposed and overlapped are how long collectives ran without "
        "and with concurrent computation, including waiting for other ranks; all-reduces alone is the time "
        "to all-reduce the same bytes with nothing else running"
    )
    ways = [way for way, _ in WAYS if way != "overlapped"]  # if exposed is missing, so is overlapped
    figures = [getattr(point.communication, way) for point in points for way in ways]
    reasons = [(f.mean_s is None, f.missing) for f in figures if f.missing]
    for is_missing, reason in dict.fromkeys(reasons):
        yield f"{units.MISSING if is_missing else 'no intervals'}: {reason}"


def about_phases(points: Sequence[PointBreakdown]) -> Iterator[str]:
    """Explain how phases were timed; empty if none was timed."""
    phases = [point.phases for point in points if point.phases is not None]
    if not phases:
        return
    yield (
        "broken down after the window; residual: the window's mean step minus the sum; "
        "communication: what gradient averaging adds to the backward pass, including copies into "
        "buckets; host gap: step time not covered by any phase"
    )
    remarks = [one.remark for one in phases]
    remarks += [one.communication_missing for one in phases if one.communication_missing != ALONE]
    yield from (str(remark) for remark in dict.fromkeys(remarks) if remark)


def about_learning(points: Sequence[PointBreakdown]) -> Iterator[str]:
    """Explain what counts as equal or, if nothing was checked, why not."""
    if any(point.alike is not None for point in points):
        yield ABOUT_LEARNING
    yield from dict.fromkeys(f"{LEARNING_ALIKE}: {x.alike_missing}" for x in points if x.alike_missing)


def launch_lines(rows: Sequence[ScaleRow]) -> Iterator[str]:
    """List outlier launches, and report how many more launches would be enough."""
    for row in rows:
        if row.outlier_launches and row.rate_without_outliers is not None:
            named = ", ".join(str(replicate + 1) for replicate in row.outlier_launches)
            rate = units.rate(row.rate_without_outliers, row.figures.item)
            yield (
                f"{row.figures.case_id}: outliers (modified Z-score over 3.5; not excluded): "
                f"launch {named}; without {rate}"
            )
    if any(row.outlier_launches for row in rows):
        yield outliers_by_chance()
    needed = [row.launches_for_one_percent for row in rows if row.launches_for_one_percent]
    if needed:
        yield f"at this spread, ±1 % for every throughput would need {max(needed)} launches"


def thumb_lines(study: ScaleStudy) -> Iterator[str]:
    """Report what the rule of thumb recommends."""
    rule = study.rule_of_thumb
    if rule is not None and study.num_parameters is not None:
        yield f"{rule.reason}: {rule.advice}"
        if study.advice.measured is not None:
            yield "the measurements above take precedence over it"


def topology_lines(launches: Sequence[CaseRecords]) -> Iterator[str]:
    """Yield one line per host with several devices; none if no host described itself."""
    hosts = {record.host: record.facts for launch in launches for record in launch.of(Environment)}
    lines = [f"{host}: {line}" for host, facts in hosts.items() for line in _host_lines(facts)]
    yield from lines
    if lines:
        yield LINK_PROBE


def _host_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    devices = facts.get("devices") or []
    if len(devices) < 2:
        return
    reached = {device["index"]: device.get("peer_access") for device in devices}
    if any(link is None for link in reached.values()):
        yield (
            f"{len(devices)} devices; whether they copy directly is not known: the framework "
            "does not report it"
        )
        return
    lacking = [
        f"{one}-{other}" for one in reached for other in reached if one < other and other not in reached[one]
    ]
    pairs = len(devices) * (len(devices) - 1) // 2
    if not lacking:
        yield f"{len(devices)} devices, all {pairs} pairs copy directly (peer access)"
    else:
        yield (
            f"{len(devices)} devices, {len(lacking)} of {pairs} pairs copy only through host "
            f"memory: {', '.join(lacking)}"
        )
