"""Amdahl's law and the universal scaling law (USL), fitted to throughputs, and what they predict beyond.

With N devices of throughput X(N), the USL (Gunther 2007, Guerrilla Capacity Planning) says
N / X(N) = (1 + σ(N − 1) + κN(N − 1)) / X(1): σ is what only one device can do at a time, κ what each pair of
devices costs. Amdahl's law is the same with κ = 0. Both are linear in 1/X(1), σ/X(1) and κ/X(1), and noise
adds to seconds: so least squares, weighted by each point's own error, give them at once. Where each device
has a batch of its own, summing gradients over a ring costs 2(N − 1)/N times their bytes over a link: a law by
which is predicted, too; where all share one batch, it is Amdahl's.

Before a law predicts, it is tried: fitted without the largest number of devices, it must predict what was
measured there. What few devices cannot show is κ, which grows with the square of their number; so the
interval is that of the USL and of Amdahl's law together, and of the cost of a ring where the points may
follow it, whichever of them the value itself is from. An interval is Student's t with Satterthwaite's degrees
of freedom, from what launches of each point scatter by; what a law leaves unexplained beyond that is tested
first, and a law that does not hold is no fit. `benchmarks/scaling_fits.py` shows how often intervals hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from gpuproof.base.units import NOT_WELL_ENOUGH, plus_minus
from gpuproof.statistics.comparison import MIN_LAUNCHES
from gpuproof.statistics.distributions import f_tail, student_t_quantile
from gpuproof.statistics.estimate import FloatArray, Interval, Unavailable, welch_degrees_of_freedom
from gpuproof.verdict.rules.model import MORE_THAN_THERE_IS

FACTORS = (2, 4, 8)
LEAST_POINTS = 4
"""Three to fit a law to, and one to try it on."""
TRIAL_CONFIDENCE = 0.95
TRIAL_REACH = 0.1
"""A law that is only known to ± this beforehand cannot fail, and nothing is predicted by it."""
LawName = Literal["Amdahl's law", "universal scaling law", "cost of a ring"]
AMDAHL: LawName = "Amdahl's law"
USL: LawName = "universal scaling law"
RING: LawName = "cost of a ring"
NUM_PARAMETERS: dict[LawName, int] = {AMDAHL: 2, USL: 3, RING: 2}
CONFIDENCE = 0.95
LACK_OF_FIT = 0.01
"""A law is refused where points that follow it would lie so far off once in a hundred studies."""
PRIOR_FREEDOM = 10.0
"""Degrees of freedom that the points' common relative spread has beside a point's own, in weights alone: the
spread of three launches is hardly known."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One number of devices, and the throughput of each launch on them, in items a second."""

    num_devices: int
    rates: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LawFit:
    """A law that the points follow."""

    law: LawName
    serial: Interval
    """σ: the share of one device's time that does not divide."""
    crosstalk: Interval | None
    """κ: what each pair of devices costs; None under Amdahl's law."""
    num_points: int
    lack_of_fit: float | None
    """How often points that follow the law would lie so far off; None where as many points as parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearFit:
    """Least squares over a curve's points: coefficients, and how each follows from the points."""

    law: LawName
    coefficients: FloatArray
    gains: FloatArray
    """Coefficients by points: what each point's value adds to each."""
    variances: FloatArray
    """Of the points' values."""
    freedoms: FloatArray
    """Of those."""
    lack_of_fit: float | None

    def slowdown(self, num_devices: int, *, confidence: float = CONFIDENCE) -> Interval:
        """Return 1 / efficiency on so many devices, with its interval."""
        row = design_row(num_devices, self.law)
        return self._over_first(float(row[1:] @ self.coefficients[1:]), row, confidence, offset=1.0)

    def share(self, place: int, *, confidence: float = CONFIDENCE) -> Interval:
        """Return σ (1) or κ (2) with its interval."""
        row = np.zeros(self.coefficients.size)
        row[place] = 1.0
        return self._over_first(float(self.coefficients[place]), row, confidence, offset=0.0)

    def _over_first(self, value: float, row: FloatArray, confidence: float, *, offset: float) -> Interval:
        """Return `offset` + value / first coefficient, to the first order in the points' errors."""
        first = self.coefficients[0]
        gradient = row / first
        gradient[0] = -value / first**2
        parts = (gradient @ self.gains) ** 2 * self.variances
        freedom = welch_degrees_of_freedom(list(parts), list(self.freedoms))
        reach = student_t_quantile(freedom, (1 + confidence) / 2) * float(parts.sum()) ** 0.5
        centre = offset + value / float(first)
        return Interval(
            low=centre - reach,
            high=centre + reach,
            centre=centre,
            confidence=confidence,
            method=f"least squares of the {self.law} on launches",
            num_launches=int(self.freedoms.sum()) + self.freedoms.size,
            num_samples=self.freedoms.size,
            between_launches=True,
        )


def design_row(num_devices: int, law: LawName) -> FloatArray:
    """Return what multiplies each coefficient of N / X(N).

    >>> [float(value) for value in design_row(4, USL)]
    [1.0, 3.0, 12.0]
    """
    if law == RING:
        return np.array([1.0, 2.0 * (num_devices - 1.0) / num_devices])
    row = [1.0, num_devices - 1.0, num_devices * (num_devices - 1.0)]
    return np.array(row[: NUM_PARAMETERS[law]])


def least_squares(points: Sequence[CurvePoint], law: LawName) -> LinearFit:
    """Fit without asking whether the law holds; at least as many points as parameters, each of 2 launches.

    Raises:
        ValueError: there are fewer.
    """
    if len(points) < NUM_PARAMETERS[law] or any(len(point.rates) < 2 for point in points):
        raise ValueError(f"{law} needs {NUM_PARAMETERS[law]} points of two launches or more")
    times = [point.num_devices / np.array(point.rates) for point in points]
    means = np.array([launch_times.mean() for launch_times in times])
    counts = np.array([launch_times.size for launch_times in times])
    spreads = np.array([launch_times.var(ddof=1) for launch_times in times]) / means**2
    common = float((spreads * (counts - 1)).sum() / (counts - 1).sum())
    mixed = ((counts - 1) * spreads + PRIOR_FREEDOM * common) / (counts - 1 + PRIOR_FREEDOM)
    expected = np.maximum(mixed, 1e-18) * means**2 / counts
    design = np.array([design_row(point.num_devices, law) for point in points])
    weighted = design.T / expected
    gains = np.linalg.solve(weighted @ design, weighted)
    coefficients = gains @ means
    left = len(points) - coefficients.size
    off = float(((means - design @ coefficients) ** 2 / expected).sum())
    return LinearFit(
        law=law,
        coefficients=coefficients,
        gains=gains,
        variances=np.maximum(spreads, 1e-18) * means**2 / counts,
        freedoms=counts - 1.0,
        lack_of_fit=f_tail(left, float((counts - 1).sum()), off / left) if left else None,
    )


def fit_law(points: Sequence[CurvePoint], law: LawName) -> LawFit | Unavailable:
    """Fit a law to points in order of devices, or say why it is no fit."""
    reason = reason_no_fit(points, law)
    if reason is not None:
        return Unavailable(reason=reason)
    fit = least_squares(points, law)
    if fit.lack_of_fit is not None and fit.lack_of_fit < LACK_OF_FIT:
        return Unavailable(reason=f"the points do not follow it (p = {fit.lack_of_fit:.2g})")
    serial, crosstalk = fit.share(1), fit.share(2) if law == USL else None
    for name, parameter in (("σ", serial), ("κ", crosstalk)):
        if parameter is not None and parameter.centre <= 0:
            upto = max(0.0, parameter.high)
            return Unavailable(reason=f"{name} is at its bound of 0 (at most {upto:.2g} by its interval)")
    return LawFit(
        law=law, serial=serial, crosstalk=crosstalk, num_points=len(points), lack_of_fit=fit.lack_of_fit
    )


def laws_followed(points: Sequence[CurvePoint]) -> list[LawName]:
    """Return the laws of two parameters that the points do not speak against, the likeliest first."""
    fits = [least_squares(points, law) for law in (AMDAHL, RING)]
    likely = [fit for fit in fits if (fit.lack_of_fit or 0.0) >= LACK_OF_FIT and fit.share(1).high > 0]
    return [fit.law for fit in sorted(likely, key=lambda fit: -(fit.lack_of_fit or 0.0))]


def reason_no_fit(points: Sequence[CurvePoint], law: LawName) -> str | None:
    """Say what speaks against fitting at all, before the law is looked at."""
    needed = NUM_PARAMETERS[law] + 1
    if len(points) < needed:
        had = ", ".join(str(point.num_devices) for point in points) or "none"
        return f"needs {needed} different numbers of devices (one more than its parameters); measured: {had}"
    if points[0].num_devices != 1:
        return "one device was not measured"
    few = [point for point in points if len(point.rates) < MIN_LAUNCHES]
    if few:
        return f"{few[0].num_devices} devices have {len(few[0].rates)} launches (needs {MIN_LAUNCHES})"
    one = float(np.mean(points[0].rates))
    over = [p for p in points if float(np.mean(p.rates)) > MORE_THAN_THERE_IS * p.num_devices * one]
    if over:
        return f"{over[0].num_devices} devices were faster than that many times one device"
    return None
