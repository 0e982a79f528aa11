"""Compute the curves of a study: their laws, breaks and predictions, and the overhead of steps.

A curve covers one batch size under strong or weak scaling. A law applies to a single communication method. If
communication changes at the next device count (to another backend, another algorithm, or a second host), the
curve is broken there, and nothing is fitted or predicted across the break.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gpuproof.launches.launch import Launch
from gpuproof.launches.point_measures import THROUGHPUT
from gpuproof.statistics.comparison import MIN_LAUNCHES
from gpuproof.statistics.distributions import student_t_quantile
from gpuproof.statistics.estimate import Interval, Unavailable
from gpuproof.suites.scale.laws import AMDAHL, USL, CurvePoint, LawFit, LawName, Prediction, fit_law, predict
from gpuproof.suites.scale.plan import Law, ScalePoint

CONFIDENCE = 0.95
ALGORITHM = re.compile(r"_(RING|TREE|NVLS_TREE|NVLS|COLLNET_DIRECT|COLLNET_CHAIN|PAT)_")
"""Pattern for the algorithm in the name of an NCCL kernel. Newer NCCL versions include "ring" in the kernel
names of several algorithms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedLaw:
    """A law, and the result of fitting it."""

    law: LawName
    fit: LawFit | None
    missing: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOverhead:
    """Time by which a step on several devices exceeds its share of one device's step."""

    num_devices: int
    mean_step_s: float
    overhead_s: Interval | None
    missing: str | None

    @property
    def share(self) -> float | None:
        """Overhead divided by the step time."""
        return None if self.overhead_s is None else self.overhead_s.centre / self.mean_step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleCurve:
    """One batch size under strong or weak scaling, from one device to the largest number of devices."""

    batch_size: int
    scaling: Law
    num_hosts: int
    """The largest number of hosts that any point ran on."""
    breaks: tuple[CurveBreak, ...]
    laws: tuple[FittedLaw, ...]
    prediction: Prediction | None
    prediction_missing: str | None
    overheads: tuple[StepOverhead, ...]


def curves_of(
    points: Sequence[ScalePoint],
    launches: Mapping[str, Sequence[Launch]],
    unusable: Mapping[str, str],
) -> Iterator[ScaleCurve]:
    """Yield the curves of a study.

    `launches` maps each case to its launches, and `unusable` a case that cannot be compared to the reason.
    """
    for batch, scaling in dict.fromkeys((x.batch_size, x.law) for x in points if x.law is not None):
        assert scaling is not None
        chosen = [x for x in points if x.batch_size == batch and x.law in (scaling, None)]
        measured = [(x, launches[x.case_id]) for x in chosen if launches[x.case_id]]
        yield _curve(batch, scaling, sorted(measured, key=lambda pair: pair[0].num_devices), unusable)


def _curve(
    batch: int,
    scaling: Law,
    measured: Sequence[tuple[ScalePoint, Sequence[Launch]]],
    unusable: Mapping[str, str],
) -> ScaleCurve:
    fabrics = [(point.num_devices, fabric_of(of_point)) for point, of_point in measured]
    broken = tuple(breaks_of(fabrics))
    rates = [
        CurvePoint(num_devices=point.num_devices, rates=tuple(x.figures[THROUGHPUT] for x in of_point))
        for point, of_point in measured
        if not broken or point.num_devices <= broken[0].before
    ]
    reason = next((unusable[point.case_id] for point, _ in measured if point.case_id in unusable), None)
    refused = None if reason is None else Unavailable(reason=reason)
    fits = [(law, refused or fit_law(rates, law)) for law in (AMDAHL, USL)]
    predicted = refused or _prediction(rates, broken)
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
        overheads=tuple(_overheads(measured, scaling, unusable)),
    )


def _prediction(rates: Sequence[CurvePoint], broken: Sequence[CurveBreak]) -> Prediction | Unavailable:
    if broken:
        first = broken[0]
        reason = f"the curve is interrupted between {first.before} and {first.after} devices ({first.reason})"
        return Unavailable(reason=reason)
    return predict(rates)


def _overheads(
    measured: Sequence[tuple[ScalePoint, Sequence[Launch]]], scaling: Law, unusable: Mapping[str, str]
) -> Iterator[StepOverhead]:
    steps = [
        (point.num_devices, [x.mean_step_s for x in of_point], unusable.get(point.case_id))
        for point, of_point in measured
    ]
    alone, lone_reason = next(((times, reason) for number, times, reason in steps if number == 1), ([], None))
    for number, times, own_reason in steps:
        if number == 1:
            continue
        share = 1 / number if scaling == "strong" else 1.0
        reason = lone_reason or own_reason
        spread = (
            overhead(alone, times, ideal_share=share, confidence=CONFIDENCE)
            if reason is None
            else Unavailable(reason=reason)
        )
        yield StepOverhead(
            num_devices=number,
            mean_step_s=sum(times) / len(times),
            overhead_s=spread if isinstance(spread, Interval) else None,
            missing=spread.reason if isinstance(spread, Unavailable) else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """How the ranks of a point communicate, as far as recorded."""

    num_hosts: int
    backend: str | None
    """Communication backend; None on one device."""
    algorithms: tuple[str, ...]
    """Algorithms, taken from the names of the collectives' kernels; empty if the names do not include
    them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveBreak:
    """A break between two device counts, where the communication method changes."""

    before: int
    after: int
    reason: str


def fabric_of(launches: Sequence[Launch]) -> Fabric:
    """Report how the ranks of one point's launches communicate; hosts are counted by name."""
    kernels = [name for x in launches for overlap in x.collective_overlap for name in overlap.kernels]
    algorithms = {match[1] for name in kernels if (match := ALGORITHM.search(name))}
    return Fabric(
        num_hosts=max((len({w.host for w in launch.windows}) for launch in launches), default=1),
        backend=next((launch.setup.backend for launch in launches if launch.setup.backend), None),
        algorithms=tuple(sorted(algorithms)),
    )


def breaks_of(fabrics: Sequence[tuple[int, Fabric]]) -> Iterator[CurveBreak]:
    """Yield the breaks in a curve, by number of devices; a single device does not communicate."""
    several = [item for item in fabrics if item[0] > 1]
    for (before, near), (after, far) in pairwise(several):
        if reason := _difference(near, far):
            yield CurveBreak(before=before, after=after, reason=reason)
    if fabrics and several and fabrics[0][0] == 1 and several[0][1].num_hosts > 1:
        reason = f"into {several[0][1].num_hosts} hosts"
        yield CurveBreak(before=1, after=several[0][0], reason=reason)


def _difference(near: Fabric, far: Fabric) -> str | None:
    if near.num_hosts != far.num_hosts:
        return f"from {near.num_hosts} host{'s' * (near.num_hosts > 1)} to {far.num_hosts}"
    if near.backend != far.backend:
        return f"from {near.backend} to {far.backend}"
    if near.algorithms != far.algorithms and near.algorithms and far.algorithms:
        return f"from {'+'.join(near.algorithms)} to {'+'.join(far.algorithms)}"
    return None


def overhead(
    single_s: Sequence[float], several_s: Sequence[float], *, ideal_share: float, confidence: float
) -> Interval | Unavailable:
    """Return how far, in seconds, a step on several devices exceeds its share of one device's step.

    `single_s` and `several_s` are the mean step times of launches. `ideal_share` is the fraction of one
    device's step time that a step would take if devices only divided the work: 1 / N under strong scaling, 1
    under weak scaling. Noise is additive in seconds, so the result is a difference, with Welch's t-test and
    the degrees of freedom of the smaller side.
    """
    if min(len(single_s), len(several_s)) < MIN_LAUNCHES:
        return Unavailable(reason=f"one side has fewer than {MIN_LAUNCHES} launches")
    one, several = np.array(single_s), np.array(several_s)
    centre = float(several.mean() - ideal_share * one.mean())
    variance = several.var(ddof=1) / several.size + ideal_share**2 * one.var(ddof=1) / one.size
    freedom = min(one.size, several.size) - 1
    reach = student_t_quantile(freedom, (1 + confidence) / 2) * float(variance) ** 0.5
    return Interval(
        low=centre - reach,
        high=centre + reach,
        centre=centre,
        confidence=confidence,
        method="Welch's t-test on the launches' mean step times",
        num_launches=one.size + several.size,
        num_samples=one.size + several.size,
        between_launches=True,
    )
