"""Amdahl's law and the universal scaling law (USL), fitted to throughputs, and their predictions.

With N devices and throughput X(N), the USL (Gunther 2007, Guerrilla Capacity Planning) is N / X(N) = (1 + σ(N
− 1) + κN(N − 1)) / X(1): σ is the fraction of the work that only one device can do at a time, and κ is the
cost per pair of devices. Amdahl's law is the special case κ = 0. Both are linear in 1/X(1), σ/X(1) and
κ/X(1), and the noise is additive in seconds, so least squares weighted by each point's own error yields these
directly. If each device has its own batch, summing gradients over a ring costs 2(N − 1)/N times their bytes
over a link, and this law is also used for prediction. If all devices share one batch, the ring cost has the
same form as Amdahl's law.

Before a law is used for prediction, it is tested: fitted without the largest number of devices, it must
predict what was measured there. κ, which grows with the square of the number of devices, cannot be estimated
from few devices. So the interval is the union of the intervals of the USL, of Amdahl's law and, if the points
may follow it, of the ring cost, whichever law provides the value itself. Intervals use Student's t with
Satterthwaite's degrees of freedom, based on the scatter of each point's launches. A law is first tested for
unexplained scatter beyond that, and a law that fails is rejected. `benchmarks/scaling_fits.py` shows how
often intervals contain the true value.
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
"""Minimum number of points: three to fit a law, and one to test it."""
TRIAL_CONFIDENCE = 0.95
TRIAL_REACH = 0.1
"""If the uncertainty of the prediction is larger than this, the trial could not fail, and the law is not used
for predictions."""
LawName = Literal["Amdahl's law", "universal scaling law", "cost of a ring"]
AMDAHL: LawName = "Amdahl's law"
USL: LawName = "universal scaling law"
RING: LawName = "cost of a ring"
NUM_PARAMETERS: dict[LawName, int] = {AMDAHL: 2, USL: 3, RING: 2}
CONFIDENCE = 0.95
LACK_OF_FIT = 0.01
"""Significance level: points that follow a law would deviate this much in only one of a hundred studies."""
PRIOR_FREEDOM = 10.0
"""Degrees of freedom assigned to the pooled spread of all points when it is combined with a point's own
spread. Used for weights only, since a spread estimated from three launches is imprecise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LawTrial:
    """Test of a scaling law: the result at the largest device count is predicted from the others."""

    num_devices: int
    predicted: Interval
    """Efficiency."""
    reach: float
    """Half-width of the interval for predicted minus measured time, relative to the measured time (0.1 is 10
    %)."""
    measured: float
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedPoint:
    """The prediction for a number of devices."""

    num_devices: int
    efficiency: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Predicted efficiency beyond the measured range."""

    law: LawName
    trial: LawTrial
    points: tuple[PredictedPoint, ...]


def predict(points: Sequence[CurvePoint]) -> Prediction | Unavailable:
    """Predict 2, 4 and 8 times the largest number of devices, or report why that is not possible."""
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
    """Choose the law for predictions: the one that fits the points best, or the USL if κ is significant.

    A law in which a cost is at its bound of 0 does not count as a fit, but may still be used for prediction.
    """
    if (reason := reason_no_fit(points, AMDAHL)) is not None:
        return Unavailable(reason=f"no law fits: {reason}")
    full = fit_law(points, USL)
    if isinstance(full, LawFit) and full.crosstalk is not None and full.crosstalk.low > 0:
        return USL
    laws = [*laws_followed(points), *([USL] if isinstance(full, LawFit) else [])]
    return laws[0] if laws else Unavailable(reason="no law fits: the points do not follow any of them")


def try_out(points: Sequence[CurvePoint], law: LawName) -> LawTrial:
    """Predict the result for the largest number of devices from the others, and check the prediction.

    The predicted N / X(N) is compared with the measured one; the two share no launches.
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
    """Return why the trial rules out a prediction; None if it was passed and could have failed."""
    point = trial.predicted
    if not trial.passed:
        return (
            f"{law} failed on {trial.num_devices} devices: from the others it predicts an efficiency of "
            f"{point.centre:.1%} ({point.low:.1%} to {point.high:.1%}), but {trial.measured:.1%} was measured"
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
    """Return 1 / slowdown: value of the first law, interval over all laws; always between 0 and 1."""
    first = slowdowns[0]
    slowest, fastest = (max(ratio.high for ratio in slowdowns), min(ratio.low for ratio in slowdowns))
    return replace(
        first,
        centre=1 / first.centre if first.centre > 1 else 1.0,
        low=1 / max(slowest, 1.0),
        high=1 / max(fastest, 1.0),
        method=f"{first.method}, widened to include the other law's interval"
        if len(slowdowns) > 1
        else first.method,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One device count, and the throughput of each launch at that count, in items per second."""

    num_devices: int
    rates: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LawFit:
    """A scaling law fitted to the points."""

    law: LawName
    serial: Interval
    """σ: the fraction of one device's time that cannot be divided among devices."""
    crosstalk: Interval | None
    """κ: the cost per pair of devices; None under Amdahl's law."""
    num_points: int
    lack_of_fit: float | None
    """Probability that points following the law deviate at least this much; None if there are only as many
    points as parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearFit:
    """Least squares fit over a curve's points: coefficients, and how each depends on the points."""

    law: LawName
    coefficients: FloatArray
    gains: FloatArray
    """Matrix of coefficients by points: how much each point's value contributes to each coefficient."""
    variances: FloatArray
    """Variances of the points' values."""
    freedoms: FloatArray
    """Degrees of freedom of the points' variances."""
    lack_of_fit: float | None

    def slowdown(self, num_devices: int, *, confidence: float = CONFIDENCE) -> Interval:
        """Return 1 / efficiency on this many devices, with its interval."""
        row = design_row(num_devices, self.law)
        return self._over_first(float(row[1:] @ self.coefficients[1:]), row, confidence, offset=1.0)

    def share(self, place: int, *, confidence: float = CONFIDENCE) -> Interval:
        """Return σ (1) or κ (2) with its interval."""
        row = np.zeros(self.coefficients.size)
        row[place] = 1.0
        return self._over_first(float(self.coefficients[place]), row, confidence, offset=0.0)

    def _over_first(self, value: float, row: FloatArray, confidence: float, *, offset: float) -> Interval:
        """Return `offset` + value / first coefficient, to first order in the points' errors."""
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
            method=f"least-squares fit of the {self.law} to launches",
            num_launches=int(self.freedoms.sum()) + self.freedoms.size,
            num_samples=self.freedoms.size,
            between_launches=True,
        )


def design_row(num_devices: int, law: LawName) -> FloatArray:
    """Return the factor of each coefficient in N / X(N).

    >>> [float(value) for value in design_row(4, USL)]
    [1.0, 3.0, 12.0]
    """
    if law == RING:
        return np.array([1.0, 2.0 * (num_devices - 1.0) / num_devices])
    row = [1.0, num_devices - 1.0, num_devices * (num_devices - 1.0)]
    return np.array(row[: NUM_PARAMETERS[law]])


def least_squares(points: Sequence[CurvePoint], law: LawName) -> LinearFit:
    """Fit the law without checking it; needs as many points as parameters, with 2 launches each.

    Raises:
        ValueError: there are too few points or launches.
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
    """Fit a law to points ordered by number of devices, or report why it does not fit."""
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
            return Unavailable(reason=f"{name} is at its bound of 0 (its interval allows at most {upto:.2g})")
    return LawFit(
        law=law, serial=serial, crosstalk=crosstalk, num_points=len(points), lack_of_fit=fit.lack_of_fit
    )


def laws_followed(points: Sequence[CurvePoint]) -> list[LawName]:
    """Return the two-parameter laws that the points do not rule out, the most likely one first."""
    fits = [least_squares(points, law) for law in (AMDAHL, RING)]
    likely = [fit for fit in fits if (fit.lack_of_fit or 0.0) >= LACK_OF_FIT and fit.share(1).high > 0]
    return [fit.law for fit in sorted(likely, key=lambda fit: -(fit.lack_of_fit or 0.0))]


def reason_no_fit(points: Sequence[CurvePoint], law: LawName) -> str | None:
    """Return the reason that rules out any fit, before a law is considered."""
    needed = NUM_PARAMETERS[law] + 1
    if len(points) < needed:
        had = ", ".join(str(point.num_devices) for point in points) or "none"
        return (
            f"needs {needed} different numbers of devices (one more than the law has "
            f"parameters); measured: {had}"
        )
    if points[0].num_devices != 1:
        return "one device was not measured"
    few = [point for point in points if len(point.rates) < MIN_LAUNCHES]
    if few:
        return f"{few[0].num_devices} devices have {len(few[0].rates)} launches (needs {MIN_LAUNCHES})"
    one = float(np.mean(points[0].rates))
    over = [p for p in points if float(np.mean(p.rates)) > MORE_THAN_THERE_IS * p.num_devices * one]
    if over:
        return f"{over[0].num_devices} devices were faster than perfect scaling from one device"
    return None
