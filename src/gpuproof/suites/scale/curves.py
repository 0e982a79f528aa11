"""Each curve of a study: laws that it follows, where it breaks, what it predicts, what steps cost more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuproof.launches.launch import Launch
from gpuproof.launches.point_figures import THROUGHPUT
from gpuproof.statistics.estimate import Interval, Unavailable
from gpuproof.suites.scale.curve import CurveBreak, breaks_of, fabric_of, overhead
from gpuproof.suites.scale.laws import AMDAHL, USL, CurvePoint, LawFit, LawName, fit_law
from gpuproof.suites.scale.plan import Law, ScalePoint
from gpuproof.suites.scale.prediction import Prediction, predict

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedLaw:
    """A law, and what came of fitting it."""

    law: LawName
    fit: LawFit | None
    missing: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOverhead:
    """By how much a step on several devices takes longer than its share of one device's."""

    num_devices: int
    mean_step_s: float
    overhead_s: Interval | None
    missing: str | None

    @property
    def share(self) -> float | None:
        """Overhead over the step."""
        return None if self.overhead_s is None else self.overhead_s.centre / self.mean_step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleCurve:
    """One batch size under one law of growth, from one device to the most."""

    batch_size: int
    scaling: Law
    num_hosts: int
    """The most that a point ran on."""
    breaks: tuple[CurveBreak, ...]
    laws: tuple[FittedLaw, ...]
    prediction: Prediction | None
    prediction_missing: str | None
    overheads: tuple[StepOverhead, ...]


def curves_of(points: Sequence[ScalePoint], launches: Mapping[str, Sequence[Launch]]) -> Iterator[ScaleCurve]:
    """Yield the curves of a study; `launches` are those of each case."""
    for batch, scaling in dict.fromkeys((x.batch_size, x.law) for x in points if x.law is not None):
        assert scaling is not None
        chosen = [x for x in points if x.batch_size == batch and x.law in (scaling, None)]
        measured = [(x, launches[x.case_id]) for x in chosen if launches[x.case_id]]
        yield _curve(batch, scaling, sorted(measured, key=lambda pair: pair[0].num_devices))


def _curve(batch: int, scaling: Law, measured: Sequence[tuple[ScalePoint, Sequence[Launch]]]) -> ScaleCurve:
    fabrics = [(point.num_devices, fabric_of(of_point)) for point, of_point in measured]
    broken = tuple(breaks_of(fabrics))
    rates = [
        CurvePoint(num_devices=point.num_devices, rates=tuple(x.figures[THROUGHPUT] for x in of_point))
        for point, of_point in measured
        if not broken or point.num_devices <= broken[0].before
    ]
    fits = [(law, fit_law(rates, law)) for law in (AMDAHL, USL)]
    predicted = _prediction(rates, broken)
    return ScaleCurve(
        batch_size=batch,
        scaling=scaling,
        num_hosts=max((fabric.num_hosts for _, fabric in fabrics), default=1),
        breaks=broken,
        laws=tuple(
            FittedLaw(
                law=law,
                fit=None if isinstance(fit, Unavailable) else fit,
                missing=fit.reason if isinstance(fit, Unavailable) else None,
            )
            for law, fit in fits
        ),
        prediction=None if isinstance(predicted, Unavailable) else predicted,
        prediction_missing=predicted.reason if isinstance(predicted, Unavailable) else None,
        overheads=tuple(_overheads(measured, scaling)),
    )


def _prediction(rates: Sequence[CurvePoint], broken: Sequence[CurveBreak]) -> Prediction | Unavailable:
    if broken:
        first = broken[0]
        reason = f"the curve is interrupted between {first.before} and {first.after} devices ({first.reason})"
        return Unavailable(reason=reason)
    return predict(rates)


def _overheads(
    measured: Sequence[tuple[ScalePoint, Sequence[Launch]]], scaling: Law
) -> Iterator[StepOverhead]:
    steps = [(point.num_devices, [x.mean_step_s for x in of_point]) for point, of_point in measured]
    alone = next((times for number, times in steps if number == 1), [])
    for number, times in steps:
        if number == 1:
            continue
        share = 1 / number if scaling == "strong" else 1.0
        spread = overhead(alone, times, ideal_share=share, confidence=CONFIDENCE)
        yield StepOverhead(
            num_devices=number,
            mean_step_s=sum(times) / len(times),
            overhead_s=spread if isinstance(spread, Interval) else None,
            missing=spread.reason if isinstance(spread, Unavailable) else None,
        )
