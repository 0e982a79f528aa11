"""Compute the mean step time and its stability at a power cap, where a controller sets the clock.

An oscillation counts as one level: a clock that drops and recovers about once a second does not make a window
unsteady, and its cycles are not noise. Steps are treated as a rate over time and averaged over exactly one
period, which removes the oscillation and leaves the differences between periods. The lowest cosine components
of these running means, nearly as many as there are periods, are independent (Müller 2007, as in `low_end`)
once each is corrected for the attenuation by two averages: the average computed here, and the average implied
by each period having its own level. The components show how precise the mean is, regardless of where periods
start, and whether a drift or a change of level is significant. `benchmarks/power_cap_windows.py` shows how
often each result is right.

>>> window = judge_power_cap([1.0 + 0.1 * (step % 50 < 25) for step in range(1200)])
>>> window.verdict, round(window.period_s), round(window.num_periods)
('steady', 52, 24)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import floor, sqrt
from typing import Literal

import numpy as np

from gpuproof.statistics.distributions import student_t_quantile
from gpuproof.statistics.estimate import (
    FloatArray,
    Interval,
    Numbers,
    Unavailable,
    check_confidence,
    finite,
    median,
)
from gpuproof.statistics.series import LOST_SHARE, OUTLYING

PowerCapVerdict = Literal["steady", "unsteady", "cannot tell", "too short"]
NEEDED_PERIODS = 20
"""Number of periods needed: 20 periods that differ by 3 % determine their mean to ±1.4 %; 6 such periods, to
±3 %."""
NEEDED_S = 20.0
"""Seconds needed if the period is unknown: 20 periods of one second, as observed on an H100."""
NEARLY = 0.95
"""Fraction of the requirement that counts as sufficient, since the period is only accurate to a few
percent."""
BINS = 600
"""Number of bins to split a window into when searching for a period: 30 for each of 20 periods."""
PERIODIC = 0.5
"""Minimum mean autocorrelation at a lag and its multiples for the lag to count as a period. Noise seldom
reaches 0.2. If periods differ by more than the depth of the oscillation, the mean reaches 0.4 at multiples of
the period."""
FUNDAMENTAL = 0.5
"""Fraction of the best score that a lag needs: the shortest such lag is the period, and longer ones are its
multiples."""
SAME_PERIOD = 0.15
"""Relative distance within which autocorrelation peaks belong to one period, because its cycles vary in
length."""
GRID = 1000
"""Number of running means per window."""
COMPONENTS_A_PERIOD, MOST_COMPONENTS = 0.85, 24
"""Limits on the number of components: averaging over a period attenuates higher ones too much to correct
for."""
FEWEST_COMPONENTS = 3
FALSE_ALARMS = (0.03, 0.037, 0.042)
"""Fraction of steady windows with a false alarm: for drift alone; for drift or a change of level; and when
slow sawtooth patterns are included as well."""
SHOWN = 0.95
"""Fraction of windows in which the smallest reported drift would have been detected."""
MATTERS = 0.015
"""Fraction of the mean by which a level may change: a card that is warming up is not unsteady."""
DETECTS = 0.15
"""Size of a drift that a window must be able to detect, or else it is inconclusive; with 20 periods that
differ by 3 %, a drift of 10 % is detected."""
PLACES = np.linspace(0.1, 0.9, 17)
"""Positions in the window at which a change of level is tested."""
TURNS, PHASES = np.arange(1.0, 4.3, 0.2), np.arange(0.0, 1.0, 0.05)
"""Tooth counts and phases of slow sawtooth patterns: a window with only a few teeth does not oscillate around
one level."""
CREST = 0.75
"""Quantile of the step times that represents the slow half of a period."""
ROUNDING = 1e-9
"""Relative difference that rounding causes between running means of equal steps."""
DRAWS = 5_000
METHOD = "cosine components of running means over a period of the power cap's controller"


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCapWindow:
    """Findings about a window at the power cap: its mean step time and its level."""

    verdict: PowerCapVerdict
    interval: Interval | Unavailable
    """Interval of the mean step time, in the unit of the times; unavailable with fewer than about five
    periods."""
    period_s: float | None
    """Period of the oscillation, in seconds; None if no period was found."""
    duration_s: float
    needed_s: float
    detects: float | None
    """The smallest drift across the window, relative to its mean, that would be detected in 95 % of cases."""
    changed_by: float
    """Increase in step time in the most significant change, relative to the mean."""
    changed_at: float | None
    """Position in the window at which the level changed, from 0 to 1; None for a drift from start to end."""
    lost_share: float
    """Excess time of steps far above the crest of a period, divided by the total time."""

    @property
    def num_periods(self) -> float | None:
        """Number of periods in the window; None if the period is unknown."""
        return self.duration_s / self.period_s if self.period_s else None

    @property
    def stalled(self) -> bool:
        """Whether outlying steps took a significant fraction of the time."""
        return self.lost_share > LOST_SHARE


def judge_power_cap(times_s: Numbers, *, confidence: float = 0.95) -> PowerCapWindow | None:
    """Evaluate step times of a power-capped window, in order; None if there are too few or any is 0.

    Raises:
        ValueError: a time is not finite, or the confidence is not between 0 and 1.
    """
    check_confidence(confidence)
    times = finite(times_s)
    if times.size < NEEDED_PERIODS or float(times.min()) <= 0:
        return None
    duration_s, period_s = float(times.sum()), period_of_steps(times)
    needed_s = NEEDED_S if period_s is None else NEEDED_PERIODS * period_s
    # An unknown period may be longer than a second if the window fits 20 such periods.
    assumed_s = period_s or max(NEEDED_S, duration_s) / NEEDED_PERIODS
    components = _components(times, duration_s, assumed_s)
    change = _Change(size=0.0) if components is None else _strongest_change(components)
    is_short = components is None or duration_s < NEARLY * needed_s
    detects = None if components is None else _smallest_drift(components)
    crest = float(np.quantile(times, CREST))
    return PowerCapWindow(
        verdict="too short" if is_short else _verdict(change, detects),
        interval=_interval(times, components, confidence),
        period_s=period_s,
        duration_s=duration_s,
        needed_s=needed_s,
        detects=detects,
        changed_by=change.size,
        changed_at=change.at,
        lost_share=float((times[times > OUTLYING * crest] - crest).sum()) / duration_s,
    )


def period_of_steps(times_s: FloatArray) -> float | None:
    """Return the period of a window's step times, in seconds; None if none is found."""
    ends = np.concatenate([[0.0], np.cumsum(times_s)])
    every_s = max(2 * median(times_s), float(ends[-1]) / BINS)
    count = np.interp(np.arange(0.0, ends[-1], every_s), ends, np.arange(ends.size))
    lag = period_of(np.diff(count))
    return None if lag is None else lag * every_s


def period_of(values: FloatArray) -> int | None:
    """Return the number of values after which a series repeats; None if no period is found.

    A period is also visible at its multiples, so its score is the mean autocorrelation over all of them.
    """
    most = values.size // 4
    if most < 4 or not np.ptp(values):
        return None
    correlation = _autocorrelation(values, most)
    falls = int(np.argmax(correlation < 0))
    middle = correlation[1:-1]
    is_peak = (middle >= correlation[:-2]) & (middle >= correlation[2:]) & (middle > 0)
    lags = [int(lag) for lag in np.flatnonzero(is_peak) + 1 if 0 < falls < lag]
    scores = [_score(correlation, lag) for lag in lags]
    if not scores or max(scores) < PERIODIC:
        return None
    first = next(lag for lag, score in zip(lags, scores, strict=True) if score >= FUNDAMENTAL * max(scores))
    near = [(score, lag) for lag, score in zip(lags, scores, strict=True) if lag <= (1 + SAME_PERIOD) * first]
    return max(item for item in near if item[1] >= first)[1]


def _autocorrelation(values: FloatArray, most: int) -> FloatArray:
    """Return the detrended autocorrelation, lags 0 to `most`, with components weighted by frequency.

    These weights prevent slow differences between periods from hiding the oscillation.
    """
    place = np.arange(values.size) - (values.size - 1) / 2
    away = values - values.mean()
    away = away - place * (away @ place / (place @ place))
    power = np.abs(np.fft.rfft(away, 2 * values.size)) ** 2
    correlation = np.fft.irfft(power * np.arange(power.size))[: most + 1]
    shares: FloatArray = correlation / correlation[0] / (1 - np.arange(most + 1) / values.size)
    return shares


def _score(correlation: FloatArray, lag: int) -> float:
    """Return the mean autocorrelation at a lag and near its multiples, since periods vary in length."""
    peaks = [float(correlation[lag])]
    for multiple in range(2 * lag, correlation.size, lag):
        near = max(1, multiple // 20)
        peaks.append(float(correlation[multiple - near : multiple + near + 1].max()))
    return sum(peaks) / len(peaks)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """A change of level: its size relative to the mean, positive for longer steps, and its position."""

    size: float
    at: float | None = None
    stands_out: float = 0.0
    """Student's t, divided by the value that steady windows seldom exceed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Components:
    """Cosine components of a window's rate relative to its mean, each with the variance of that mean."""

    rate: float
    values: FloatArray
    periods: int
    """Number of periods over which the starting points of running means are spread."""

    @property
    def variance(self) -> float:
        """Relative variance of the mean rate."""
        return float(self.values @ self.values) / self.values.size


def _verdict(change: _Change, detects: float | None) -> PowerCapVerdict:
    if change.stands_out > 1 and abs(change.size) > MATTERS:
        return "unsteady"
    return "steady" if detects is not None and detects <= DETECTS else "cannot tell"


def _components(times: FloatArray, duration_s: float, period_s: float) -> _Components | None:
    """Return the components of running means over a period; None if the window has too few periods."""
    periods = duration_s / period_s - 1  # the number of periods in which running means start
    count = min(MOST_COMPONENTS, floor(COMPONENTS_A_PERIOD * periods))
    if count < FEWEST_COMPONENTS:
        return None
    ends, number = np.concatenate([[0.0], np.cumsum(times)]), np.arange(times.size + 1)
    begins = np.linspace(0, duration_s - period_s, GRID)
    done = np.interp(begins + period_s, ends, number) - np.interp(begins, ends, number)
    rate = float(done.mean())
    order = np.arange(1, count + 1)
    means = np.cos(np.pi / GRID * np.outer(order, np.arange(GRID) + 0.5)) @ (done / rate - 1)
    kept = np.sinc(order / 2 / periods)  # attenuation of a component by averaging over a period
    values = sqrt(2) / GRID * means / kept**2
    if float(np.abs(values).max()) < ROUNDING:
        values = np.zeros(count)
    return _Components(rate=rate / period_s, values=values, periods=round(periods))


def _strongest_change(components: _Components) -> _Change:
    """Return the most significant drift or change of level, compared with the other components."""
    size, error = _sizes(components)
    limits = _tests(components.values.size, components.periods)[1]
    over = np.abs(size) / np.maximum(error, ROUNDING) / limits
    best = int(over.argmax())
    at = float(PLACES[best - 1]) if 0 < best <= PLACES.size else None
    return _Change(size=float(size[best]), at=at, stands_out=float(over[best]))


def _smallest_drift(components: _Components) -> float:
    """Return the smallest drift that would be detected in `SHOWN` of cases."""
    error = float(_sizes(components)[1][0])
    limit = float(_tests(components.values.size, components.periods)[1][0])
    return max(MATTERS, error * (limit + student_t_quantile(components.values.size - 1, SHOWN)))


def _sizes(components: _Components) -> tuple[FloatArray, FloatArray]:
    """Return each change's size and standard error, computed from the components it does not explain."""
    values, (changes, _) = components.values, _tests(components.values.size, components.periods)
    squares = (changes**2).sum(axis=1)
    size = changes @ values / squares
    rest = np.maximum(0.0, values @ values - size**2 * squares)
    return size, np.sqrt(rest / (values.size - 1) / squares)


@lru_cache(maxsize=64)
def _tests(count: int, periods: int) -> tuple[FloatArray, FloatArray]:
    """Return changes' components relative to the overall mean, and the t that each rarely exceeds.

    The changes are a drift, then a change of level at each of `PLACES`, then slow sawtooth waves.
    """
    place = (np.arange(GRID) + 0.5) / GRID
    levels = place > PLACES[:, np.newaxis]
    teeth = [(turns * place + phase) % 1 for turns in TURNS for phase in PHASES]
    shapes = np.vstack([place * periods / (periods + 1), levels, teeth])
    order = np.arange(1, count + 1)
    waves = np.cos(np.pi * np.outer(order, place))
    changes = -sqrt(2) / GRID * shapes @ waves.T / np.sinc(order / 2 / periods)
    directions = changes / np.sqrt((changes**2).sum(axis=1, keepdims=True))
    drawn = np.random.default_rng(0).standard_normal((DRAWS, count))
    along = (drawn @ directions.T) ** 2
    student = np.sqrt(along * (count - 1) / ((drawn**2).sum(axis=1, keepdims=True) - along))
    limits, passed, before = np.empty(len(changes)), np.ones(DRAWS, dtype=bool), 0.0
    kinds = (slice(0, 1), slice(1, 1 + PLACES.size), slice(1 + PLACES.size, None))
    for kind, share in zip(kinds, FALSE_ALARMS, strict=True):
        largest = student[:, kind].max(axis=1)
        limits[kind] = np.quantile(largest[passed], (1 - share) / (1 - before))
        passed, before = passed & (largest <= limits[kind][0]), share
    return changes, limits


def _interval(times: FloatArray, components: _Components | None, confidence: float) -> Interval | Unavailable:
    """Return the interval of the mean step time, which always contains the mean of all steps."""
    mean = float(times.mean())
    if components is None:
        return Unavailable(reason="the window at the power cap is too short for an interval")
    quantile = student_t_quantile(components.values.size, (1 + confidence) / 2)
    reach = quantile * sqrt(components.variance)
    if reach >= 1:
        return Unavailable(reason="periods of the power cap's controller differ too much for an interval")
    return Interval(
        low=min(mean, 1 / components.rate / (1 + reach)),
        high=max(mean, 1 / components.rate / (1 - reach)),
        centre=mean,
        confidence=confidence,
        method=METHOD,
        num_launches=1,
        num_samples=times.size,
        between_launches=False,
    )
