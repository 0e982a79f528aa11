"""What a scaling study says in sentences: averages, laws, what its tables are of, and the rule of thumb.

How the devices of a study reach each other: what torch said of direct copies, host by host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuproof.base import units
from gpuproof.launches.communication import ALONE
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Environment
from gpuproof.statistics.dispersion import outliers_by_chance
from gpuproof.statistics.estimate import Interval
from gpuproof.suites.scale.apart import LEAST_CORRELATION, MOST_LOSS, MOST_NORM, MOST_WEIGHT, WAYS, PointApart
from gpuproof.suites.scale.curves import FittedLaw, ScaleCurve

if TYPE_CHECKING:
    from gpuproof.suites.scale.conclude import Average, ScaleRow, ScaleStudy


LEARNING_ALIKE = "One device and several, trained alike"
ABOUT_LEARNING = (
    "ten steps from the same weights on the same samples, by all ranks and by one alone, without dropout, by "
    f"plain SGD; alike: losses apart by under {MOST_LOSS}, norms of gradients correlate by over "
    f"{LEAST_CORRELATION} and are apart by under {MOST_NORM:.0%}, weights apart by under {MOST_WEIGHT:g}"
)


def average_lines(averages: Sequence[Average]) -> Iterator[str]:
    """Yield the speed-up over all batch sizes, a line a number of devices and law."""
    for average in averages:
        ratio = average.speed_up.comparison.ratio
        ratio_text = "" if ratio is None else f" {ratio.centre:.2f} × ({ratio.low:.2f} – {ratio.high:.2f})"
        yield f"{average.num_devices} devices, {average.law} scaling:{ratio_text} {average.conclusion}"


def law_lines(curve: ScaleCurve) -> Iterator[str]:
    """Say which laws a curve follows, where it breaks, and why nothing is predicted."""
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
            f"{name}: {curve.prediction.law}, without {trial.num_devices} devices, says an efficiency of "
            f"{units.share(trial.predicted.centre)} there, and {units.share(trial.measured)} was measured"
        )
    else:
        yield f"{name}: nothing is predicted: {curve.prediction_missing}"


def _law(law: FittedLaw) -> str:
    if law.fit is None:
        return f"no fit of {law.law}: {law.missing}"
    crosstalk = law.fit.crosstalk
    of_pairs = "" if crosstalk is None else f", κ {_plain(crosstalk)} for each pair of devices"
    return f"{law.law}: σ {_plain(law.fit.serial)} does not divide{of_pairs}"


def _plain(interval: Interval) -> str:
    return f"{interval.centre:.3g} ({max(0.0, interval.low):.3g} – {interval.high:.3g})"


def about_communication(points: Sequence[PointApart]) -> Iterator[str]:
    """Say what the three measures are; nothing where none was taken."""
    if all(point.communication.sync_difference.missing == ALONE for point in points):
        return
    yield (
        "three different figures: added by averaging is what averaging gradients adds to a step (less "
        "what the same code adds in a group of one); exposed and overlapped are how long collectives ran "
        "without and with computation beside them, waiting for other ranks included; all-reduces alone is "
        "the time of the same bytes by themselves"
    )
    ways = [way for way, _ in WAYS if way != "overlapped"]  # which lacks what exposed does
    figures = [getattr(point.communication, way) for point in points for way in ways]
    reasons = [(f.mean_s is None, f.missing) for f in figures if f.missing]
    for is_missing, reason in dict.fromkeys(reasons):
        yield f"{units.MISSING if is_missing else 'no intervals'}: {reason}"


def about_phases(points: Sequence[PointApart]) -> Iterator[str]:
    """Say how phases were timed; nothing where none was."""
    phases = [point.phases for point in points if point.phases is not None]
    if not phases:
        return
    yield (
        "taken apart after the window; residual: the window's mean step less the sum; communication: what "
        "averaging gradients adds to the backward pass, copies into buckets included; host gap: what a step "
        "takes beyond its phases"
    )
    remarks = [one.remark for one in phases]
    remarks += [one.communication_missing for one in phases if one.communication_missing != ALONE]
    yield from (str(remark) for remark in dict.fromkeys(remarks) if remark)


def about_learning(points: Sequence[PointApart]) -> Iterator[str]:
    """Say what is called alike, and why it was not looked at."""
    if any(point.alike is not None for point in points):
        yield ABOUT_LEARNING
    yield from dict.fromkeys(f"{LEARNING_ALIKE}: {x.alike_missing}" for x in points if x.alike_missing)


def launch_lines(rows: Sequence[ScaleRow]) -> Iterator[str]:
    """Name launches that stand apart, and say how many more would be enough."""
    for row in rows:
        if row.outlier_launches and row.rate_without_outliers is not None:
            named = ", ".join(str(replicate + 1) for replicate in row.outlier_launches)
            rate = units.rate(row.rate_without_outliers, row.figures.item)
            yield (
                f"{row.figures.case_id}: outliers (modified Z-score over 3.5; kept): launch {named}; "
                f"without {rate}"
            )
    if any(row.outlier_launches for row in rows):
        yield outliers_by_chance()
    needed = [row.launches_for_one_percent for row in rows if row.launches_for_one_percent]
    if needed:
        yield f"for ±1 % of every throughput {max(needed)} launches would be needed at this spread"


def thumb_lines(study: ScaleStudy) -> Iterator[str]:
    """Say what the rule of thumb does."""
    rule = study.rule_of_thumb
    if rule is not None and study.num_parameters is not None:
        yield f"{rule.reason}: {rule.advice}"
        if study.advice.measured is not None:
            yield "the measurements above take precedence over it"


LINK_PROBE = "how fast copies are: gpuproof run probe --probe.name=link"


def topology_lines(launches: Sequence[CaseRecords]) -> Iterator[str]:
    """Yield a line a host that has several devices; nothing where no host described itself."""
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
        yield f"{len(devices)} devices; whether they copy directly is not known: the framework does not say"
        return
    lacking = [
        f"{one}-{other}" for one in reached for other in reached if one < other and other not in reached[one]
    ]
    pairs = len(devices) * (len(devices) - 1) // 2
    if not lacking:
        yield f"{len(devices)} devices, all {pairs} pairs copy directly (peer access)"
    else:
        yield (
            f"{len(devices)} devices, {len(lacking)} of {pairs} pairs copy through the host's memory alone: "
            f"{', '.join(lacking)}"
        )
