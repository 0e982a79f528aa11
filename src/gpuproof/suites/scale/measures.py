"""The figures of a scaling study beyond its throughputs: speed-ups, and what steps are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuproof.base import units
from gpuproof.records.result import Better, Measure
from gpuproof.statistics.estimate import Interval, as_record
from gpuproof.suites.scale.apart import WAYS, PointApart
from gpuproof.suites.scale.curves import ScaleCurve
from gpuproof.suites.scale.plan import Law

if TYPE_CHECKING:
    from gpuproof.suites.scale.conclude import ScaleRow, ScaleStudy

SPEED_UP, COMMUNICATION, PHASES = "speed-up", "communication", "phases"
LEARNING, MEMORY, OVERHEAD, PREDICTION = "learning", "memory", "overhead", "prediction"
EFFICIENCY = "efficiency"
PARTS_OF_A_STEP = ("data", "forward", "backward", "communication", "optimizer", "host gap")


def study_measures(study: ScaleStudy) -> Iterator[Measure]:
    """Yield every figure; the label `section` says of which table, `quantity` of which column."""
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
    """A batch size on so many devices, which figures are of."""

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
        """Return a figure of this place."""
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
    if (span := measure.interval) is not None:  # of the speed-up, over the devices
        low, high = (end / row.num_devices for end in (span.low, span.high))
        efficiency = replace(efficiency, interval=replace(span, low=low, high=high))
    yield efficiency


def _communication(point: PointApart, at: _Place) -> Iterator[Measure]:
    """Yield the measures of communication of a point on several devices, each under its own name."""
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


def _phases(point: PointApart, at: _Place) -> Iterator[Measure]:
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


def _learning(point: PointApart, at: _Place) -> Iterator[Measure]:
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


def _memory(point: PointApart, at: _Place) -> Iterator[Measure]:
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
    """Yield what more devices would give; a curve over several hosts is broken, and predicts nothing."""
    if curve.prediction is None:
        return
    for point in curve.prediction.points:
        at = _Place(curve.batch_size, point.num_devices, curve.scaling)
        share, law = point.efficiency, curve.prediction.law
        text = units.share(share.centre)
        measure = at.figure(PREDICTION, EFFICIENCY, share.centre, "1", text=text, interval=share, law=law)
        yield replace(measure, name=f"predicted {measure.name}", statistic="prediction")
