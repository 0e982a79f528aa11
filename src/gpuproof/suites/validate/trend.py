"""Does a machine slow down over hours? Fits a line to the soak's step times, with its uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuproof.base import units
from gpuproof.launches.launch import Launch
from gpuproof.records.result import Measure, MeasureInterval
from gpuproof.statistics.distributions import student_t_quantile

FEWEST = 5
"""Minimum launches to fit a line with an interval; fewer launches are divided into blocks."""
BLOCKS = 12
"""Total number of blocks into which the launches are divided if there are too few launches."""
LEAST_STEPS = 10
"""Minimum number of steps per block."""
LEVEL = 0.95
FEWEST_FREE = 2.0
"""Minimum degrees of freedom to assume."""
MOST_ALIKE = 0.9
"""Maximum correlation to assume between neighbouring values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """Increase in step time from the start of the fitted line to its end, as a fraction."""

    rise: float
    low: float
    high: float
    num_points: int


def trend_of(launches: Sequence[Sequence[float]]) -> Trend | None:
    """Return the trend of step times over launches in order; None if there are too few.

    The trend is a least-squares line through the mean step time of each launch, or of blocks with equal
    numbers of steps. Each value is positioned at the fraction of time spent until then: 0 at the start of the
    first launch, 1 at the end of the last. The slope's interval is based on Student's t. It is widened by (1
    + r) / (1 - r) if neighbouring residuals are correlated, where r is their correlation, corrected for its
    bias in short series (Kendall, 1954: r + (1 + 4 r) / n for a fitted straight line).

    >>> found = trend_of([[1.0 + 0.05 * launch] * 50 for launch in range(9)])
    >>> round(found.rise, 2), found.num_points
    (0.45, 9)
    """
    blocks = [block for times in launches for block in _blocks(times, num_launches=len(launches))]
    if len(blocks) < FEWEST:
        return None
    taken = np.array([block.sum() for block in blocks])
    place = np.cumsum(taken) - taken / 2
    x = place / taken.sum()
    y = np.array([block.mean() for block in blocks])
    slope, start = np.polyfit(x, y, 1)
    rise = slope / start if start > 0 else slope / y.mean()
    reach = _reach(x, y - (start + slope * x)) / (start if start > 0 else y.mean())
    return Trend(rise=float(rise), low=float(rise - reach), high=float(rise + reach), num_points=len(blocks))


def _blocks(times_s: Sequence[float], *, num_launches: int) -> list[np.ndarray]:
    """Split a launch into blocks; into a single block if there are enough launches."""
    if not len(times_s):
        return []
    most = len(times_s) // LEAST_STEPS
    count = 1 if num_launches >= FEWEST else max(1, min(-(-BLOCKS // num_launches), most))
    return [block for block in np.array_split(np.asarray(times_s, dtype=float), count) if len(block)]


def _reach(x: np.ndarray, residuals: np.ndarray) -> float:
    """Return the half-width of the slope's interval."""
    num = len(x)
    variance = float(residuals @ residuals) / (num - 2)
    spread = float(((x - x.mean()) ** 2).sum())
    together = float(residuals @ residuals)
    raw = float(residuals[1:] @ residuals[:-1]) / together if together > 0 else 0.0
    alike = min(MOST_ALIKE, max(0.0, raw + (1 + 4 * raw) / num))
    widened = (1 + alike) / (1 - alike)
    freedom = max(FEWEST_FREE, num / widened - 2)
    quantile = student_t_quantile(freedom, (1 + LEVEL) / 2)
    return quantile * float((variance / spread * widened) ** 0.5)


def trend_measure(launches: Sequence[Launch]) -> Measure:
    """Return the trend of a soak as a measure, with the name under which drift is checked."""
    ordered = sorted(launches, key=lambda launch: launch.case.replicate)
    trend = trend_of([launch.step_times_s for launch in ordered])
    return Measure(
        name="step-time drift",
        value=None if trend is None else trend.rise,
        unit="1",
        text=units.change(None if trend is None else trend.rise),
        detail=f"rise of a line through the mean step times of {len(ordered)} launches, from start to end",
        statistic="least-squares line",
        better="lower",
        num_samples=None if trend is None else trend.num_points,
        interval=None if trend is None else _interval(trend, num_launches=len(ordered)),
        missing="too few steps were stored to fit a line" if trend is None else None,
    )


def _interval(trend: Trend, *, num_launches: int) -> MeasureInterval:
    method = f"Student's t of the slope over {trend.num_points} points, widened for correlated neighbours"
    return MeasureInterval(
        low=trend.low,
        high=trend.high,
        level=LEVEL,
        kind="between_launches" if num_launches >= FEWEST else "within_launch",
        method=method,
    )
