"""How long did each reading stand, and what do a column's readings come to over time?

In: times in seconds and a column with NaN where there was no reading. Out: durations, a time-weighted
mean, extremes and a percentile. A reading stands until the next one; before a hole (a lost device, a
hanging driver) it stands for one usual interval only, so that a hole is not filled with its last value.

>>> durations(np.array([0.0, 1.0, 2.0, 3.0, 60.0]))
array([1., 1., 1., 1., 1.])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from gpuproof.readings.recording import Floats
from gpuproof.statistics.percentiles import percentile

HOLE_FACTOR: Final = 3.0
"""Two readings further apart than this many usual intervals have a hole between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesSummary:
    """What the readings of one metric come to, in the metric's unit."""

    mean: float
    """Weighted by the time that each reading stood."""
    minimum: float
    maximum: float
    p95: float | None
    p95_missing: str | None
    """Why `p95` is None: too few readings for it."""
    samples: int


def longest_step_s(times: Floats) -> float:
    """Tell how far apart two readings may be with nothing lost between them, from their usual interval."""
    return float(np.median(np.diff(times))) * HOLE_FACTOR if len(times) > 1 else 0.0


def durations(times: Floats) -> Floats:
    """Give the seconds for which each reading stood; the last, and one before a hole, a usual interval."""
    if len(times) < 2:
        return np.ones(len(times))
    gaps = np.diff(times)
    usual_s = float(np.median(gaps))
    gaps[gaps > usual_s * HOLE_FACTOR] = usual_s
    return np.append(gaps, usual_s)


def mean_over_time(times: Floats, values: Floats) -> float:
    """Weigh each value by the time for which it stood. There must be at least one value."""
    weights = durations(times)
    return float(np.average(values, weights=weights if weights.sum() > 0 else None))


def summarise_series(times: Floats, column: Floats) -> SeriesSummary | None:
    """Summarise the readings of a column; None where it holds none."""
    given = ~np.isnan(column)
    values = column[given]
    if not len(values):
        return None
    high = percentile(values, 95)
    return SeriesSummary(
        mean=mean_over_time(times[given], values),
        minimum=float(values.min()),
        maximum=float(values.max()),
        p95=high.value,
        p95_missing=high.reason,
        samples=len(values),
    )
