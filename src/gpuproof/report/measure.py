"""A figure as a report has it: its value and unit, how people read it, and how certain it is."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log10

from gpuproof import units
from gpuproof.statistics.estimate import Interval, Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One figure with its unit, and what is known of its uncertainty."""

    name: str
    value: float | None
    unit: str
    text: str
    """Value and unit as people read them."""
    detail: str
    """The interval and its method, or why there is none."""
    interval: Interval | None = None
    uncertainty: str | None = None
    """The farther end of the interval from its centre, as a share: ±1.2 %."""


def with_interval(
    name: str, value: float | None, unit: str, text: str, interval: Interval | Unavailable
) -> Measure:
    """Return a figure with its interval, or with the reason why it has none."""
    if isinstance(interval, Unavailable):
        return Measure(name=name, value=value, unit=unit, text=text, detail=f"no interval: {interval.reason}")
    return Measure(
        name=name,
        value=value,
        unit=unit,
        text=text,
        detail=interval_text(interval, unit),
        interval=interval,
        uncertainty=None if interval.relative_reach is None else f"±{units.share(interval.relative_reach)}",
    )


def interval_text(interval: Interval, unit: str) -> str:
    """Write an interval with as many digits as tell its ends apart."""
    digits = _digits_that_show(interval)
    low, high = (
        (units.seconds(interval.low, digits=digits), units.seconds(interval.high, digits=digits))
        if unit == "s"
        else (units.significant(interval.low, digits), f"{units.significant(interval.high, digits)} {unit}")
    )
    basis = f"{interval.num_launches} launches" if interval.between_launches else "within one launch"
    return f"{interval.confidence:.0%} interval {low} – {high} ({basis})"


def _digits_that_show(interval: Interval) -> int:
    """Return the significant digits that tell the ends of an interval apart, from 3 to 6."""
    width = interval.relative_half_width
    return 3 if not width else min(6, max(3, 1 + ceil(-log10(width))))
