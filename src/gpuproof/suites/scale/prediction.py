"""What would more devices give? Efficiency beyond those that were measured, and on what that rests.

The law that the points follow is tried first: fitted without the largest number of devices, it must predict
what was measured there. What few devices cannot show is what each pair of them costs (κ), which grows with
the square of their number; so the interval is that of the universal scaling law and of Amdahl's together,
and of the cost of a ring where the points may follow it, whichever of them the value itself is from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuproof.base.units import NOT_WELL_ENOUGH, plus_minus
from gpuproof.statistics.distributions import student_t_quantile
from gpuproof.statistics.estimate import Interval, Unavailable, welch_degrees_of_freedom
from gpuproof.suites.scale.laws import (
    AMDAHL,
    USL,
    CurvePoint,
    LawFit,
    LawName,
    design_row,
    fit_law,
    laws_followed,
    least_squares,
    reason_no_fit,
)

FACTORS = (2, 4, 8)
LEAST_POINTS = 4
"""Three to fit a law to, and one to try it on."""
TRIAL_CONFIDENCE = 0.95
TRIAL_REACH = 0.1
"""A law that is only known to ± this beforehand cannot fail, and nothing is predicted by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LawTrial:
    """The largest number of devices, predicted from the others."""

    num_devices: int
    predicted: Interval
    """Efficiency."""
    reach: float
    """Half the interval of the time that is held against the measured one, over that time (0.1 is 10 %)."""
    measured: float
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedPoint:
    """What so many devices would give."""

    num_devices: int
    efficiency: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Efficiency beyond the measured."""

    law: LawName
    trial: LawTrial
    points: tuple[PredictedPoint, ...]


def predict(points: Sequence[CurvePoint]) -> Prediction | Unavailable:
    """Predict 2, 4 and 8 times the largest number of devices, or say why nothing can be said."""
    if len(points) < LEAST_POINTS:
        return Unavailable(
            reason=f"needs {LEAST_POINTS} different numbers of devices, the largest of which tests a fit to "
            f"the others; measured: {len(points)}"
        )
    chosen = choose_law(points)
    if isinstance(chosen, Unavailable):
        return chosen
    trial = try_out(points, chosen)
    reason = reason_not_tried(trial, chosen)
    if reason is not None:
        return Unavailable(reason=reason)
    largest = points[-1].num_devices
    beyond = [_predicted(points, chosen, factor * largest) for factor in FACTORS]
    return Prediction(law=chosen, trial=trial, points=tuple(beyond))


def choose_law(points: Sequence[CurvePoint]) -> LawName | Unavailable:
    """Choose the law that a prediction rests on: the one that the points follow best, USL where κ shows.

    A cost at its bound of 0 is no fit of a law, and no reason against predicting by it.
    """
    if (reason := reason_no_fit(points, AMDAHL)) is not None:
        return Unavailable(reason=f"no law fits: {reason}")
    full = fit_law(points, USL)
    if isinstance(full, LawFit) and full.crosstalk is not None and full.crosstalk.low > 0:
        return USL
    laws = [*laws_followed(points), *([USL] if isinstance(full, LawFit) else [])]
    return laws[0] if laws else Unavailable(reason="no law fits: the points follow none")


def try_out(points: Sequence[CurvePoint], law: LawName) -> LawTrial:
    """Predict the largest number of devices from the others, and see whether it was so.

    Held against each other are N / X(N) as predicted and as measured, which have no launch in common.
    """
    *others, last = points
    fit = least_squares(others, law)
    row = design_row(last.num_devices, law)
    times = last.num_devices / np.array(last.rates)
    parts = [*(row @ fit.gains) ** 2 * fit.variances, max(float(times.var(ddof=1)), 1e-30) / times.size]
    freedom = welch_degrees_of_freedom(parts, [*fit.freedoms, times.size - 1.0])
    reach = student_t_quantile(freedom, (1 + TRIAL_CONFIDENCE) / 2) * float(sum(parts)) ** 0.5
    one, largest = float(np.mean(points[0].rates)), float(np.mean(last.rates))
    return LawTrial(
        num_devices=last.num_devices,
        predicted=_efficiency([fit.slowdown(last.num_devices)]),
        measured=largest / (last.num_devices * one),
        reach=reach / float(times.mean()),
        passed=abs(float(row @ fit.coefficients) - float(times.mean())) <= reach,
    )


def reason_not_tried(trial: LawTrial, law: LawName) -> str | None:
    """Say why the trial speaks against a prediction; None where the law passed one that it could fail."""
    point = trial.predicted
    if not trial.passed:
        return (
            f"{law} failed on {trial.num_devices} devices: from the others it says an efficiency of "
            f"{point.centre:.1%} ({point.low:.1%} to {point.high:.1%}), and {trial.measured:.1%} was measured"
        )
    if trial.reach > TRIAL_REACH:
        reach = plus_minus(trial.reach)
        reach = f"{law} is {reach if reach == NOT_WELL_ENOUGH else f'known to {reach} only'}"
        return f"without {trial.num_devices} devices {reach}: it could not fail"
    return None


def _predicted(points: Sequence[CurvePoint], law: LawName, num_devices: int) -> PredictedPoint:
    laws = dict.fromkeys([law, AMDAHL, USL, *laws_followed(points)])
    slowdowns = [least_squares(points, name).slowdown(num_devices) for name in laws]
    return PredictedPoint(num_devices=num_devices, efficiency=_efficiency(slowdowns))


def _efficiency(slowdowns: Sequence[Interval]) -> Interval:
    """Return 1 / slowdown: the first one's, with the interval of all; never over 1 nor under 0."""
    first = slowdowns[0]
    slowest, fastest = (max(ratio.high for ratio in slowdowns), min(ratio.low for ratio in slowdowns))
    return replace(
        first,
        centre=1 / first.centre if first.centre > 1 else 1.0,
        low=1 / max(slowest, 1.0),
        high=1 / max(fastest, 1.0),
        method=f"{first.method}, widened to the other law's" if len(slowdowns) > 1 else first.method,
    )
