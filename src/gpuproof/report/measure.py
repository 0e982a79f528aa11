"""One figure of a report, as every form of the report draws it."""

from __future__ import annotations

from dataclasses import dataclass

from gpuproof.analysis.estimate import Interval


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
