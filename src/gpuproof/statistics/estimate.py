"""Types for estimates: an interval with its method and basis, or the reason why there is none.

Every statistic in gpuproof accepts plain numbers and returns an `Interval` or an `Unavailable`. Having too
little data is a result, not an exception; NaN or infinity in the data raises an exception, because records
never contain them.

>>> Interval(low=9.0, high=11.0, centre=10.0, confidence=0.95, method="Student's t",
...          num_launches=5, num_samples=5, between_launches=True).relative_half_width
0.1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from gpuproof.records.result import MeasureInterval

FloatArray: TypeAlias = npt.NDArray[np.float64]
Numbers: TypeAlias = Sequence[float] | FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailable:
    """The reason why there is no estimate."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A confidence interval around a centre, in the unit of the data."""

    low: float
    high: float
    centre: float
    confidence: float
    method: str
    num_launches: int
    num_samples: int
    between_launches: bool
    """Whether the interval includes variation between launches. If not, it must not be used to compare
    runs."""

    @property
    def relative_half_width(self) -> float | None:
        """Half the width divided by |centre|; None if the centre is 0."""
        return (self.high - self.low) / 2 / abs(self.centre) if self.centre else None

    @property
    def relative_reach(self) -> float | None:
        """Distance from the centre to the farther end, divided by |centre|; None if the centre is 0."""
        reach = max(self.high - self.centre, self.centre - self.low)
        return reach / abs(self.centre) if self.centre else None


def finite(values: Numbers) -> FloatArray:
    """Return `values` as a one-dimensional array.

    Raises:
        ValueError: a value is NaN or infinite, or there is more than one dimension.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"expected one dimension, found {array.ndim}")
    if not np.isfinite(array).all():
        raise ValueError("statistics need finite values; found NaN or infinity")
    return array


def interpolate(ordered: FloatArray, place: float) -> float:
    """Return a sorted array's value at a 0-based position; bit-identical to `np.quantile`.

    This is twenty times as fast as `np.quantile`, which matters for many short arrays.
    """
    low = min(max(floor(place), 0), ordered.size - 1)
    part = min(max(place - low, 0.0), 1.0)
    first, second = float(ordered[low]), float(ordered[min(low + 1, ordered.size - 1)])
    step = second - first
    return first + step * part if part < 0.5 else second - step * (1 - part)


def median(values: FloatArray) -> float:
    """Return the median of an array of numbers; like `np.median`, in a third of the time."""
    low, high = (values.size - 1) // 2, values.size // 2
    ordered = np.partition(values, (low, high))
    return float(ordered[low] + ordered[high]) / 2


def check_confidence(confidence: float) -> float:
    """Return `confidence` unchanged if it is valid.

    Raises:
        ValueError: the confidence is not strictly between 0 and 1.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be a fraction between 0 and 1, not {confidence}")
    return confidence


def welch_degrees_of_freedom(variances: Sequence[float], freedoms: Sequence[float]) -> float:
    """Return the degrees of freedom of a sum of independent estimates (Welch and Satterthwaite).

    `variances` are the variances of the estimates (s²/n for a mean) and must not all be 0; `freedoms` are
    their degrees of freedom.
    """
    total = sum(variances)
    shares = (
        (variance / total) ** 2 / freedom for variance, freedom in zip(variances, freedoms, strict=True)
    )
    return 1 / sum(shares)


def as_record(interval: Interval) -> MeasureInterval:
    """Return an interval in the form stored in a result."""
    return MeasureInterval(
        low=interval.low,
        high=interval.high,
        level=interval.confidence,
        kind="between_launches" if interval.between_launches else "within_launch",
        method=interval.method,
    )
