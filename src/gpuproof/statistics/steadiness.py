"""Did the steps of a window keep one level, and did they run all the time?

Three things spoil a window and leave its middle step as it is: a level that changed (a cold start, a clock
that went down, a ramp, a sawtooth), a stop inside a step, and too few steps that scatter too much to tell.
The median of a twelfth of the window is held against that of any other twelfth. What is to be found is a
sawtooth of a quarter of the window and 10 % from crest to foot, and a stop of a twentieth of the window.
`benchmarks/unsteady_windows.py` shows how often each is found, and how often a flat window is suspected.

>>> judge_steadiness([1.0] * 80 + [1.25] * 20).verdict
'unsteady'
>>> judge_steadiness([1.0, 1.01, 0.99, 1.0] * 15).verdict
'steady'
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from gpuproof.statistics.dispersion import NORMAL_MAD
from gpuproof.statistics.estimate import FloatArray, Numbers, finite, median

SteadinessVerdict = Literal["steady", "unsteady", "cannot tell"]
MIN_STEPS = 10
"""Of fewer, a sawtooth of a quarter of the window has no two steps on a tooth."""
PARTS = 12
"""A tooth of a quarter of the window is three of them long."""
MIN_IN_PARTS = 20
"""Of fewer steps, each is a part of its own: two of them would hide a tooth."""
PLACES = 4 * PARTS
"""Where parts begin. Parts that overlap find a crest wherever it lies."""
SAME_LEVEL = 0.05
"""Levels may differ by this share of the median step. A sawtooth of 10 % makes them
differ by more in 99.7 % of windows, flat ones with a deviation of 1 % by less in 98 %."""
OUTLYING = 1.25
"""Steps over this many medians are outlying: what they take beyond a median is lost time."""
LOST_SHARE = 0.04
"""Share of the window's time; a stop of 5 % of the window is found with what noise there is."""
MIN_TURNS, MOST_STEPS_OF_A_TURN, EXPLAINED = 8, 32, 0.25
"""A pace that outlying steps keep is looked for in at least eight turns, and leaves at most a quarter of what
they take: `benchmarks/unsteady_windows.py` shows how seldom stops by chance seem to keep one."""
STUDENTIZED_RANGE = 6.0
"""Range over deviation of some 30 independent normal values, exceeded in 1 % of cases."""
MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, for normal values: √(π/2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steadiness:
    """How far levels differ in one window, and how much of its time outlying steps took."""

    verdict: SteadinessVerdict
    """Of the levels; "cannot tell" where noise alone may make them differ as far as they do."""
    level_spread: float
    """Highest less lowest median of a twelfth of the window, over the median step."""
    by_noise: float
    """As far may levels differ by the scatter of neighbouring steps alone; 0 where parts are single steps."""
    lowest_at: float
    """Where in the window (0 to 1) the part with the shortest steps has its middle."""
    highest_at: float
    lost_share: float
    """What outlying steps took beyond the median step, over the time of all steps."""
    num_outlying: int
    period: int | None = None
    """After so many steps the outlying ones come again at the same places, where nearly all of them do."""

    @property
    def stalled(self) -> bool:
        """Whether outlying steps took a share of the time that matters."""
        return self.lost_share > LOST_SHARE


def judge_steadiness(times_s: Numbers) -> Steadiness | None:
    """Judge the step times of a window, in order; None for under `MIN_STEPS` steps, or steps of no time.

    Raises:
        ValueError: a time is not finite.
    """
    times = finite(times_s)
    middle = median(times) if times.size >= MIN_STEPS else 0.0
    if middle <= 0:
        return None
    length = _length_of_parts(times.size)
    begins = _begins_of_parts(times.size, length)
    levels = np.median(sliding_window_view(times, length)[begins], axis=1) / middle
    lowest, highest = int(levels.argmin()), int(levels.argmax())
    spread = float(levels[highest] - levels[lowest])
    by_noise = _spread_by_noise(times / middle, length)
    outlying = times[times > OUTLYING * middle]
    lost_share = float((outlying - middle).sum() / times.sum())
    if spread <= SAME_LEVEL:
        verdict: SteadinessVerdict = "steady"
    else:
        verdict = "unsteady" if length > 1 and spread > by_noise else "cannot tell"
    return Steadiness(
        verdict=verdict,
        level_spread=spread,
        by_noise=by_noise,
        lowest_at=float((begins[lowest] + length / 2) / times.size),
        highest_at=float((begins[highest] + length / 2) / times.size),
        lost_share=lost_share,
        num_outlying=outlying.size,
        period=_period(times, lost_share) if lost_share > LOST_SHARE else None,
    )


def _period(times: FloatArray, lost_share: float) -> int | None:
    """Return the fewest steps of a turn whose places have levels from which few steps are far away."""
    for period in range(2, min(times.size // MIN_TURNS, MOST_STEPS_OF_A_TURN) + 1):
        places = (np.sort(times[place::period]) for place in range(period))
        levels = np.array([steps[steps.size // 2] for steps in places])  # of one step: no mean of two kinds
        away = np.abs(times / levels[np.arange(times.size) % period] - 1)
        if away[away > OUTLYING - 1].sum() < EXPLAINED * lost_share * times.size:
            return period
    return None


def _length_of_parts(num_steps: int) -> int:
    """Return an even number, so that of steps which are long and short in turns each part has as many."""
    return 2 * int(num_steps / PARTS / 2 + 0.5) if num_steps >= MIN_IN_PARTS else 1


@lru_cache(maxsize=16)
def _begins_of_parts(num_steps: int, length: int) -> NDArray[np.int64]:
    """Return where parts begin; windows of a study are of one size."""
    return np.unique(np.linspace(0, num_steps - length, PLACES).round().astype(np.int64))


def _spread_by_noise(times: FloatArray, length: int) -> float:
    """Return how far medians of `length` steps differ by the scatter within them.

    A step's distance from its own part's median shows the scatter without the level, and the correlation of
    neighbours' distances how much of the scatter medians keep: √((1 + r)/(1 − r)) for AR(1). Both are
    corrected for the part's median being of the same steps.
    """
    if length == 1:
        return 0.0
    whole = times[: times.size - times.size % length].reshape(-1, length)
    away = (whole - np.median(whole, axis=1, keepdims=True)).ravel()
    deviation = median(np.abs(away)) / NORMAL_MAD * sqrt(length / (length - 1))
    held = np.clip(away, -3 * deviation, 3 * deviation)
    total = float(held @ held)
    correlation = float(held[1:] @ held[:-1]) / total if total else 0.0
    correlation = min(0.95, max(0.0, correlation + 1 / length))
    error = MEDIAN_ERROR * deviation * sqrt((1 + correlation) / (1 - correlation) / length)
    return STUDENTIZED_RANGE * error
