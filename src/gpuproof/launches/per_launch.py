"""A figure of which every launch has one value: its mean, and where another launch would lie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from gpuproof.statistics.estimate import Interval
from gpuproof.statistics.launches import interval_of_launches


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFigure:
    """One value a launch, in seconds."""

    values_s: tuple[float, ...]
    interval: Interval | None
    missing: str | None
    """Why there is no value, or no interval."""

    @property
    def mean_s(self) -> float | None:
        """Mean over launches; None where none has a value."""
        return fmean(self.values_s) if self.values_s else None


def figure_of(values_s: Iterable[float | None], *, missing: str | None = None) -> LaunchFigure:
    """Return the figure of the launches that have a value; `missing` says why none has.

    >>> figure_of([0.010, 0.012]).mean_s
    0.011
    """
    measured_s = tuple(value for value in values_s if value is not None)
    if not measured_s:
        return LaunchFigure(values_s=(), interval=None, missing=missing or "not measured in any launch")
    interval = interval_of_launches(measured_s)
    if isinstance(interval, Interval):
        return LaunchFigure(values_s=measured_s, interval=interval, missing=None)
    return LaunchFigure(values_s=measured_s, interval=None, missing=interval.reason)


def first_reason(reasons: Sequence[str | None]) -> str | None:
    """Return the first reason that was given."""
    return next((reason for reason in reasons if reason), None)
