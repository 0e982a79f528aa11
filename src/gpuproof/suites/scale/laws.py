"""Amdahl's law and the universal scaling law (USL), fitted to throughputs over numbers of devices.

With N devices of throughput X(N), the USL (Gunther 2007, Guerrilla Capacity Planning) says
N / X(N) = (1 + σ(N − 1) + κN(N − 1)) / X(1): σ is what only one device can do at a time, κ what each pair of
devices costs. Amdahl's law is the same with κ = 0. Both are linear in 1/X(1), σ/X(1) and κ/X(1), and noise
adds to seconds: so least squares, weighted by each point's own error, give them at once. Where each device
has a batch of its own, summing gradients over a ring costs 2(N − 1)/N times their bytes over a link: a law by
which is predicted, too; where all share one batch, it is Amdahl's.

An interval is Student's t with Satterthwaite's degrees of freedom, from what launches of each point scatter
by; what a law leaves unexplained beyond that is tested first, and a law that does not hold is no fit.
`benchmarks/scaling_fits.py` shows how often intervals hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gpuproof.statistics.comparison import MIN_LAUNCHES
from gpuproof.statistics.distributions import f_tail, student_t_quantile
from gpuproof.statistics.estimate import FloatArray, Interval, Unavailable, welch_degrees_of_freedom
from gpuproof.verdict.rules.quantities import MORE_THAN_THERE_IS

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
