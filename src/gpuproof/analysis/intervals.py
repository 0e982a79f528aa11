"""An interval as a result keeps it."""

from __future__ import annotations

from gpuproof.records.result import MeasureInterval
from gpuproof.statistics.estimate import Interval


def as_record(interval: Interval) -> MeasureInterval:
    """Return an interval as a result keeps it."""
    return MeasureInterval(
        low=interval.low,
        high=interval.high,
        level=interval.confidence,
        kind="between_launches" if interval.between_launches else "within_launch",
        method=interval.method,
    )
