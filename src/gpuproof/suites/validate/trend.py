"""Does a machine become slower over hours? A line through the soak's throughput, and how well it is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuproof.base import units
from gpuproof.launches.launch import Launch
from gpuproof.records.result import Measure, MeasureInterval
from gpuproof.statistics.distributions import student_t_quantile

FEWEST = 5
"""Launches that a line with an interval takes; of fewer, launches are cut into blocks."""
BLOCKS = 12
"""Of all launches together, where they are fewer."""
LEAST_STEPS = 10
"""Of a block."""
LEVEL = 0.95
FEWEST_FREE = 2.0
"""Degrees of freedom that are reckoned with at least."""
MOST_ALIKE = 0.9
"""Correlation of neighbours that is reckoned with at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """By which share steps took longer at the end of a line than at its begin."""

    rise: float
    low: float
    high: float
    num_points: int


def trend_of(launches: Sequence[Sequence[float]]) -> Trend | None:
    """Return the trend of step times over launches in order; None where they are too few.

    A least-squares line through the mean step time of each launch, or of blocks of equal numbers of steps,
    placed by the time that was spent until then: 0 where the first begins, 1 where the last ends. The slope's
    interval is Student's, widened where neighbours
    among the residuals are alike: by (1 + r) / (1 - r), r being their correlation, corrected for its bias in
    short series (Kendall, 1954: r + (1 + 4 r) / n for a straight line that was fitted).

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
    """Cut a launch into blocks; into one where there are launches enough."""
    if not len(times_s):
        return []
    most = len(times_s) // LEAST_STEPS
    count = 1 if num_launches >= FEWEST else max(1, min(-(-BLOCKS // num_launches), most))
    return [block for block in np.array_split(np.asarray(times_s, dtype=float), count) if len(block)]


def _reach(x: np.ndarray, residuals: np.ndarray) -> float:
    """Return half the width of the slope's interval."""
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
    """Return the trend of a soak as a measure, named as the drift that it is judged as."""
    ordered = sorted(launches, key=lambda launch: launch.case.replicate)
    trend = trend_of([launch.step_times_s for launch in ordered])
    return Measure(
        name="step-time drift",
        value=None if trend is None else trend.rise,
        unit="1",
        text=units.change(None if trend is None else trend.rise),
        detail=f"rise of a line through the mean step times of {len(ordered)} launches, from begin to end",
        statistic="least-squares line",
        better="lower",
        num_samples=None if trend is None else trend.num_points,
        interval=None if trend is None else _interval(trend, num_launches=len(ordered)),
        missing="too few steps were kept for a line" if trend is None else None,
    )


def _interval(trend: Trend, *, num_launches: int) -> MeasureInterval:
    method = f"Student's t of the slope over {trend.num_points} points, widened for neighbours that are alike"
    return MeasureInterval(
        low=trend.low,
        high=trend.high,
        level=LEVEL,
        kind="between_launches" if num_launches >= FEWEST else "within_launch",
        method=method,
    )
