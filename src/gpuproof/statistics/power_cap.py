"""What is the mean step at a power cap, whose controller turns the clock up and down, and did its level hold?

An oscillation is one level: a clock that is left and returned to, about once a second, makes no window
unsteady, and none of its turns is noise. Steps are read as a rate over time and averaged over exactly one
period, so that the oscillation is gone and what periods differ by remains. The lowest cosine components of
these running means, nearly as many as there are periods, are independent (Müller 2007, as in `low_end`), once
each is corrected for what two averages take from it: ours, and that of periods that each have a level of
their own. They say how well the mean is known, wherever periods begin, and whether a drift or a change of
level stands out. `benchmarks/power_cap_windows.py` shows how often each is right.

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
"""Periods that differ by 3 % give their mean to ±1.4 %; 6 of them to ±3 %."""
NEEDED_S = 20.0
"""Where the period is not known: 20 periods of the one second that an H100 showed."""
NEARLY = 0.95
"""Share of what is needed that is enough: a period is itself known to a few percent."""
BINS = 600
"""Parts of a window in which a period is looked for: 30 for each of 20 periods."""
PERIODIC = 0.5
"""Mean autocorrelation at a period and its multiples from which it is one. Noise seldom has 0.2, and periods
that differ more than the oscillation is deep 0.4, at multiples of theirs."""
FUNDAMENTAL = 0.5
"""The shortest lag with this share of the best score is the period; longer ones are its multiples."""
SAME_PERIOD = 0.15
"""Peaks of the autocorrelation that are this close are of one period, whose turns differ in length."""
GRID = 1000
"""Running means over a window."""
COMPONENTS_A_PERIOD, MOST_COMPONENTS = 0.85, 24
"""Of higher ones, averages over a period leave too little to correct."""
FEWEST_COMPONENTS = 3
FALSE_ALARMS = (0.03, 0.037, 0.042)
"""Share of steady windows in which a drift is seen, in which that or a change of level is, or slow teeth."""
SHOWN = 0.95
"""Share of windows in which the smallest drift that is named would have been seen."""
MATTERS = 0.015
"""Share of the mean by which a level may change: a card that warms up is no unsteady one."""
DETECTS = 0.15
"""A window that would not show this drift says too little; 20 periods that differ by 3 % show one of 10 %."""
PLACES = np.linspace(0.1, 0.9, 17)
"""Where the level is tried to have changed."""
TURNS, PHASES = np.arange(1.0, 4.3, 0.2), np.arange(0.0, 1.0, 0.05)
"""Teeth so slow that a window holds only a few of them are no oscillation that is one level."""
CREST = 0.75
"""Quantile of the step times that stands for the slow half of a period."""
ROUNDING = 1e-9
"""Relative differences of running means of equal steps."""
DRAWS = 5_000
METHOD = "cosine components of running means over a period of the power cap's controller"


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCapWindow:
    """What a window at the power cap shows of its mean step, and of its level."""

    verdict: PowerCapVerdict
    interval: Interval | Unavailable
    """Of the mean step, in the unit of the times; there is none of fewer than about five periods."""
    period_s: float | None
    """None: no period could be shown."""
    duration_s: float
    needed_s: float
    detects: float | None
    """The smallest drift across the window, over its mean, that would have been seen in 95 % of cases."""
    changed_by: float
    """By how much steps became longer, over the mean, in the change that stands out most."""
    changed_at: float | None
    """Where the level changed, 0 to 1; None for a drift from begin to end."""
    lost_share: float
    """What steps far over the crest of a period took beyond it, over the time of all."""

    @property
    def num_periods(self) -> float | None:
        """Periods in the window; None where the period is not known."""
        return self.duration_s / self.period_s if self.period_s else None

    @property
    def stalled(self) -> bool:
        """Whether steps that stand out took a share of the time that matters."""
        return self.lost_share > LOST_SHARE


def judge_power_cap(times_s: Numbers, *, confidence: float = 0.95) -> PowerCapWindow | None:
    """Judge the step times of a window at the power cap, in order; None for too few, or steps of no time.

    Raises:
        ValueError: a time is not finite, or the confidence is not between 0 and 1.
    """
    check_confidence(confidence)
    times = finite(times_s)
    if times.size < NEEDED_PERIODS or float(times.min()) <= 0:
        return None
    duration_s, period_s = float(times.sum()), period_of_steps(times)
    needed_s = NEEDED_S if period_s is None else NEEDED_PERIODS * period_s
    # A period that is not known may be longer than a second where the window holds 20 longer ones.
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
    """Return the period of a window's step times, in seconds; None where none can be shown."""
    ends = np.concatenate([[0.0], np.cumsum(times_s)])
    every_s = max(2 * median(times_s), float(ends[-1]) / BINS)
    count = np.interp(np.arange(0.0, ends[-1], every_s), ends, np.arange(ends.size))
    lag = period_of(np.diff(count))
    return None if lag is None else lag * every_s


def period_of(values: FloatArray) -> int | None:
    """Return after how many values of a series they come again; None where that cannot be shown.

    A period shows at its multiples, too: its score is the mean autocorrelation at all of them.
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
    """Return it at lags from 0 to `most`, without a trend, with components weighted by their frequency.

    So weighted, what periods differ by, which is slow, hides them less.
    """
    place = np.arange(values.size) - (values.size - 1) / 2
    away = values - values.mean()
    away = away - place * (away @ place / (place @ place))
    power = np.abs(np.fft.rfft(away, 2 * values.size)) ** 2
    correlation = np.fft.irfft(power * np.arange(power.size))[: most + 1]
    shares: FloatArray = correlation / correlation[0] / (1 - np.arange(most + 1) / values.size)
    return shares


def _score(correlation: FloatArray, lag: int) -> float:
    """Return the mean of the autocorrelation at a lag and near each multiple, as periods differ in length."""
    peaks = [float(correlation[lag])]
    for multiple in range(2 * lag, correlation.size, lag):
        near = max(1, multiple // 20)
        peaks.append(float(correlation[multiple - near : multiple + near + 1].max()))
    return sum(peaks) / len(peaks)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """A change of level: its size over the mean, longer steps being positive, and where it came."""

    size: float
    at: float | None = None
    stands_out: float = 0.0
    """Student's t over what steady windows exceed seldom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Components:
    """Cosine components of a window's rate over its mean, each of the variance of that mean."""

    rate: float
    values: FloatArray
    periods: int
    """In which running means begin."""

    @property
    def variance(self) -> float:
        """Of the mean rate, relative."""
        return float(self.values @ self.values) / self.values.size


def _verdict(change: _Change, detects: float | None) -> PowerCapVerdict:
    if change.stands_out > 1 and abs(change.size) > MATTERS:
        return "unsteady"
    return "steady" if detects is not None and detects <= DETECTS else "cannot tell"


def _components(times: FloatArray, duration_s: float, period_s: float) -> _Components | None:
    """Return the components of running means over a period; None where the window holds too few periods."""
    periods = duration_s / period_s - 1  # that running means begin in
    count = min(MOST_COMPONENTS, floor(COMPONENTS_A_PERIOD * periods))
    if count < FEWEST_COMPONENTS:
        return None
    ends, number = np.concatenate([[0.0], np.cumsum(times)]), np.arange(times.size + 1)
    begins = np.linspace(0, duration_s - period_s, GRID)
    done = np.interp(begins + period_s, ends, number) - np.interp(begins, ends, number)
    rate = float(done.mean())
    order = np.arange(1, count + 1)
    means = np.cos(np.pi / GRID * np.outer(order, np.arange(GRID) + 0.5)) @ (done / rate - 1)
    kept = np.sinc(order / 2 / periods)  # of a component, by an average over a period
    values = sqrt(2) / GRID * means / kept**2
    if float(np.abs(values).max()) < ROUNDING:
        values = np.zeros(count)
    return _Components(rate=rate / period_s, values=values, periods=round(periods))


def _strongest_change(components: _Components) -> _Change:
    """Return the drift or the change of level that stands out most from the other components."""
    size, error = _sizes(components)
    limits = _tests(components.values.size, components.periods)[1]
    over = np.abs(size) / np.maximum(error, ROUNDING) / limits
    best = int(over.argmax())
    at = float(PLACES[best - 1]) if 0 < best <= PLACES.size else None
    return _Change(size=float(size[best]), at=at, stands_out=float(over[best]))


def _smallest_drift(components: _Components) -> float:
    """Return the smallest drift that would have been seen in `SHOWN` of cases."""
    error = float(_sizes(components)[1][0])
    limit = float(_tests(components.values.size, components.periods)[1][0])
    return max(MATTERS, error * (limit + student_t_quantile(components.values.size - 1, SHOWN)))


def _sizes(components: _Components) -> tuple[FloatArray, FloatArray]:
    """Return how large each change would be, and its standard error, by the components that it leaves."""
    values, (changes, _) = components.values, _tests(components.values.size, components.periods)
    squares = (changes**2).sum(axis=1)
    size = changes @ values / squares
    rest = np.maximum(0.0, values @ values - size**2 * squares)
    return size, np.sqrt(rest / (values.size - 1) / squares)


@lru_cache(maxsize=64)
def _tests(count: int, periods: int) -> tuple[FloatArray, FloatArray]:
    """Return what changes by the whole mean make of components, and what Student's t of each seldom exceeds.

    The first is a drift, then a change of level at each of `PLACES`, then slow teeth.
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
    """Return the interval of the mean step, in which the mean of all steps always lies."""
    mean = float(times.mean())
    if components is None:
        return Unavailable(reason="the window is too short at the power cap for an interval")
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
