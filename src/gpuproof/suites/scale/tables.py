"""Tables and sentences of a scaling study beyond its speed-ups: what steps are made of, and what follows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuproof import units
from gpuproof.analysis.scale.alike import LEAST_CORRELATION, MOST_LOSS, MOST_NORM, MOST_WEIGHT, Alikeness
from gpuproof.analysis.scale.communication import ALONE
from gpuproof.analysis.scale.per_launch import LaunchFigure
from gpuproof.records.page import Column, Section, Table, Text, table
from gpuproof.statistics.estimate import Interval
from gpuproof.suites.scale.apart import PointApart
from gpuproof.suites.scale.curves import FittedLaw, ScaleCurve

COMMUNICATION = "Communication of a step"
PHASES = "Phases of a step"
LEARNING = "One device and several, trained alike"
ABOUT_LEARNING = (
    "ten steps from the same weights on the same samples, by all ranks and by one alone, without dropout, by "
    f"plain SGD; alike: losses apart by under {MOST_LOSS}, norms of gradients correlate by over "
    f"{LEAST_CORRELATION} and are apart by under {MOST_NORM:.0%}, weights apart by under {MOST_WEIGHT:g}"
)


def sections_apart(points: Sequence[PointApart]) -> Iterator[Section]:
    """Yield communication, phases and memory of the points that have them."""
    several = [point for point in points if point.num_devices > 1]
    if any(point.communication.sync_difference.missing != ALONE for point in several):
        yield _communication(several)
        yield Text(title="", lines=tuple(_about_communication(several)))
    phased = [point for point in points if point.phases is not None]
    if phased:
        yield _phases(phased)
        yield Text(title="", lines=tuple(_about_phases(phased)))
    yield from _learning([point for point in several if point.alike or point.alike_missing])
    yield _memory([point for point in points if point.memory is not None])


def _where() -> tuple[Column, ...]:
    return (
        Column.of("batch", lambda row: units.count(row.batch_size)),
        Column.of("devices", lambda row: units.count(row.num_devices)),
        Column.of("scaling", lambda row: row.law or "", align="left", is_optional=True),
    )


def _communication(points: Sequence[PointApart]) -> Table:
    return table(
        COMMUNICATION,
        points,
        *_where(),
        Column.of("added by averaging", lambda row: _time_text(row.communication.sync_difference)),
        Column.of("exposed", lambda row: _time_text(row.communication.exposed)),
        Column.of("overlapped", lambda row: _time_text(row.communication.overlapped)),
        Column.of("all-reduces alone", lambda row: _time_text(row.communication.standalone)),
        Column.of("bus bandwidth", lambda row: units.bandwidth(row.communication.bus_bytes_per_s)),
        Column.of("buckets", lambda row: _buckets(row.communication.bucket_bytes)),
    )


def _time_text(figure: LaunchFigure) -> str:
    if figure.mean_s is None:
        return units.MISSING
    return f"{units.seconds(figure.mean_s)}{_range(figure.interval)}"


def _range(interval: Interval | None) -> str:
    return "" if interval is None else f" ({units.seconds(interval.low)} – {units.seconds(interval.high)})"


def _buckets(sizes: Sequence[int]) -> str:
    return f"{len(sizes)} of {units.memory(sum(sizes))}" if sizes else units.MISSING


def _about_communication(points: Sequence[PointApart]) -> Iterator[str]:
    yield (
        "three different figures: added by averaging is what averaging gradients adds to a step (less "
        "what the same code adds in a group of one); exposed and overlapped are how long collectives ran "
        "without and with computation beside them, waiting for other ranks included; all-reduces alone is "
        "the time of the same bytes by themselves"
    )
    ways = ("sync_difference", "exposed", "standalone")
    figures = [getattr(point.communication, way) for point in points for way in ways]
    reasons = [(f.mean_s is None, f.missing) for f in figures if f.missing]
    for is_missing, reason in dict.fromkeys(reasons):
        yield f"{units.MISSING if is_missing else 'no intervals'}: {reason}"


def _phases(points: Sequence[PointApart]) -> Table:
    names = list(points[0].phases.parts_s) if points[0].phases else []
    return table(
        PHASES,
        points,
        *_where(),
        *(Column.of(name, lambda row, name=name: _phase(row, name)) for name in names),  # type: ignore[misc]
        Column.of("sum", lambda row: units.seconds(row.phases.sum_s)),
        Column.of("residual", lambda row: units.seconds(row.phases.residual_s)),
        Column.of("timing overhead", lambda row: units.share(row.phases.mark_overhead)),
    )


def _phase(point: PointApart, name: str) -> str:
    assert point.phases is not None
    if name == "communication" and point.phases.communication_s is None:
        return units.MISSING
    return units.seconds(point.phases.parts_s[name])


def _about_phases(points: Sequence[PointApart]) -> Iterator[str]:
    phases = [point.phases for point in points if point.phases is not None]
    yield (
        "taken apart after the window; residual: the window's mean step less the sum; communication: what "
        "averaging gradients adds to the backward pass, copies into buckets included; host gap: what a step "
        "takes beyond its phases"
    )
    remarks = [one.remark for one in phases]
    remarks += [one.communication_missing for one in phases if one.communication_missing != ALONE]
    yield from (str(remark) for remark in dict.fromkeys(remarks) if remark)


def _learning(points: Sequence[PointApart]) -> Iterator[Section]:
    """Lay out whether several devices learn what one does."""
    compared = [(point, point.alike) for point in points if point.alike is not None]
    yield table(
        LEARNING,
        compared,
        Column.of("batch", lambda row: units.count(row[0].batch_size)),
        Column.of("devices", lambda row: units.count(row[0].num_devices)),
        Column.of("scaling", lambda row: row[0].law or "", align="left"),
        Column.of("losses apart", lambda row: f"{row[1].loss_difference:.1e}"),
        Column.of("norms correlate", lambda row: _correlation(row[1])),
        Column.of("weights apart", lambda row: f"{row[1].weight_difference:.1e}"),
        Column.of("alike", lambda row: "yes" if row[1].is_alike else "NO", align="left"),
    )
    if compared:
        yield Text(title="", lines=(ABOUT_LEARNING,))
    yield Text(
        title="",
        lines=tuple(dict.fromkeys(f"{LEARNING}: {p.alike_missing}" for p in points if p.alike_missing)),
    )


def _correlation(alike: Alikeness) -> str:
    return units.MISSING if alike.norm_correlation is None else f"{alike.norm_correlation:.4f}"


def _memory(points: Sequence[PointApart]) -> Table:
    return table(
        "Memory of the rank that holds the most",
        points,
        *_where(),
        Column.of("parameters", lambda row: units.memory(row.memory.estimate.parameters_bytes)),
        Column.of("gradients", lambda row: units.memory(row.memory.estimate.gradients_bytes)),
        Column.of("optimizer", lambda row: units.memory(row.memory.estimate.optimizer_bytes)),
        Column.of("buckets", lambda row: units.memory(row.memory.estimate.communication_bytes)),
        Column.of("activations", lambda row: units.memory(row.memory.activations_bytes)),
        Column.of("together", lambda row: units.memory(row.memory.expected_bytes)),
        Column.of("measured peak", lambda row: units.memory(row.memory.peak_bytes)),
        Column.of("measured over expected", _over, is_optional=True),
        Column.of("of the device", _device_share, is_optional=True),
    )


def _device_share(point: PointApart) -> str:
    share = None if point.memory is None else point.memory.device_share
    return "" if share is None else units.share(share)


def _over(point: PointApart) -> str:
    held = point.memory
    assert held is not None
    return "" if held.peak_bytes is None else f"{held.peak_bytes / held.expected_bytes:.2f} ×"


def laws_section(curves: Sequence[ScaleCurve]) -> Text:
    """Say of each curve which laws it follows, where it breaks, and why nothing is predicted."""
    return Text(title="Scaling laws", lines=tuple(line for curve in curves for line in _laws(curve)))


def _laws(curve: ScaleCurve) -> Iterator[str]:
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


def predictions(curves: Sequence[ScaleCurve]) -> Table:
    """Tabulate what more devices would give; a curve over several hosts is broken, and predicts nothing."""
    rows = [(c, c.prediction, point) for c in curves if c.prediction for point in c.prediction.points]
    return table(
        "Predicted, not measured: beyond the edge of the host, as if its own links went on",
        rows,
        Column.of("batch", lambda row: units.count(row[0].batch_size)),
        Column.of("scaling", lambda row: row[0].scaling, align="left"),
        Column.of("devices", lambda row: units.count(row[2].num_devices)),
        Column.of("efficiency", lambda row: units.share(row[2].efficiency.centre)),
        Column.of("95 % interval", lambda row: _shares(row[2].efficiency)),
        Column.of("rests on", lambda row: row[1].law, align="left"),
    )


def _shares(interval: Interval) -> str:
    return f"{units.share(interval.low)} – {units.share(interval.high)}"


def overheads(curves: Sequence[ScaleCurve]) -> Table:
    """Tabulate what a step takes more than its share of one device's, in seconds and of the step."""
    rows = [(curve, overhead) for curve in curves for overhead in curve.overheads]
    return table(
        "Overhead of a step: what it takes beyond its share of one device's step",
        rows,
        Column.of("batch", lambda row: units.count(row[0].batch_size)),
        Column.of("devices", lambda row: units.count(row[1].num_devices)),
        Column.of("scaling", lambda row: row[0].scaling, align="left"),
        Column.of("mean step", lambda row: units.seconds(row[1].mean_step_s)),
        Column.of("overhead", lambda row: _overhead(row[1].overhead_s)),
        Column.of("of the step", lambda row: units.share(row[1].share)),
    )


def _overhead(overhead: Interval | None) -> str:
    return units.MISSING if overhead is None else f"{units.seconds(overhead.centre)}{_range(overhead)}"
