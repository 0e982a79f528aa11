"""When is the mean step time precise enough? The plan for a window with a target precision.

In: step times, as steps finish. Out: how many steps to run next, and finally the reason to stop: the
confidence interval of the mean is as narrow as requested and both halves of the window agree, the interval no
longer gets narrower, or time runs out. The interval applies within this one launch and uses batch means,
which allow for steps that depend on earlier ones (Law and Kelton 1984,
https://doi.org/10.1287/opre.32.6.1221). This module uses only the standard library, and constant memory.

Events that did not occur in a window cannot widen its interval. So there is a minimum duration, and the
window reports which stalls it was too short to detect. The minimum is waived for steps with very little
scatter, if the steps alone rule out a drift that would move the mean by more than the requested precision
within the time limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import expm1, inf, log, sqrt

from gpuproof.worker.engine.loop import CHUNK_S, StepPlan, StepTimesSink, steps_within

MAX_BATCHES = 64
"""Batches are merged in pairs as soon as there are this many; from then on, at least half as many always
remain."""
MIN_BATCHES = 20
"""With fewer batches than this, the spread of the batch means cannot be estimated."""
INDEPENDENT = 0.3
"""If neighbouring batch means correlate more than this, the batches are too short to count as independent."""
NO_NARROWER = 0.8
"""Quadrupling the number of independent steps halves the interval. If the ratio stays above this value, more
steps do not help."""
LONG = 32
"""With this many or more steps per batch, a correlation of batch means indicates drift, not a dependence
between neighbouring steps."""
FLOOR_S = 15.0
"""Minimum measuring time in seconds unless drift is ruled out earlier, because clocks take time to settle
…"""
FLOOR_SHARE = 0.5
"""… but no more than this fraction of the time limit."""
EARLY_STEPS = 325
"""Minimum number of steps to rule out drift: even if a stall occurs only every 300 steps, this many steps,
including the chunk, contain one."""
SMALL = 0.25
"""Tolerated difference between the two halves, as a fraction of the requested precision, since even steps
with little scatter drift."""
UNSEEN = 0.05
"""Probability that a window misses all stalls of a kind that it reports as detectable."""
ROUNDING = 1e-12
"""Relative difference that summation may cause between equal times."""
Z = 1.959964
"""The normal quantile of a two-sided 95 % interval."""

TIME_UP, MORE, NO_HELP, REACHED = range(4)
"""A rank's proposed next action, in order of priority; the smallest value from any rank applies to all."""
REASONS = {TIME_UP: "time limit", NO_HELP: "more samples do not help", REACHED: "precision reached"}


class BatchMeans:
    """Means of equally long batches of a series: 32 to 64 of them, however long the series is."""

    def __init__(self) -> None:
        self.size = 1
        self.means: list[float] = []
        self.num_values = 0
        self._sum = 0.0
        self._in_batch = 0

    def add(self, values: Sequence[float]) -> bool:
        """Add values; return whether batches were merged, which doubles their size."""
        joined = False
        self.num_values += len(values)
        for value in values:
            self._sum += value
            self._in_batch += 1
            if self._in_batch == self.size:
                self.means.append(self._sum / self.size)
                self._sum, self._in_batch = 0.0, 0
                if len(self.means) == MAX_BATCHES:
                    self._join()
                    joined = True
        return joined

    def _join(self) -> None:
        self.means = [(a + b) / 2 for a, b in zip(self.means[::2], self.means[1::2], strict=True)]
        self.size *= 2

    @property
    def correlation(self) -> float:
        """Correlation between each batch mean and the next, corrected for small samples; 1 if unknown."""
        count = len(self.means)
        if count < MIN_BATCHES:
            return 1.0
        mean = sum(self.means) / count
        away = [value - mean for value in self.means]
        total = sum(a * a for a in away)
        if total <= count * (ROUNDING * mean) ** 2:
            return 0.0
        lag_one = sum(a * b for a, b in pairwise(away)) / total
        return lag_one + (1 + 3 * lag_one) / count  # Kendall 1954, https://doi.org/10.1093/biomet/41.3-4.403

    def relative_half_width(self) -> float:
        """Half-width of the mean's 95 % interval, divided by the mean; infinite with too few batches."""
        count = len(self.means)
        if count < MIN_BATCHES:
            return inf
        mean = sum(self.means) / count
        variance = sum((value - mean) ** 2 for value in self.means) / (count - 1)
        correlation = min(0.95, max(0.0, self.correlation))
        error = sqrt(variance / count * (1 + correlation) / (1 - correlation))
        return student_quantile(count - 1) * error / mean if mean else inf

    def relative_drift(self, horizon_values: float) -> float:
        """Return how far off the mean may be if a drift spans this many values; infinite if unknown.

        Computed as the far end of the 95 % interval for the slope of a line fitted to the batch means, times
        half the horizon, divided by the mean. Correlated batch means widen that interval, as they do for the
        mean.
        """
        count = len(self.means)
        if count < MIN_BATCHES:
            return inf
        middle, mean = (count - 1) / 2, sum(self.means) / count
        # sum of the squared distances of 0 … count - 1 from their midpoint
        spread = count * (count * count - 1) / 12
        slope = sum((place - middle) * value for place, value in enumerate(self.means)) / spread
        rest = sum(
            (value - mean - slope * (place - middle)) ** 2 for place, value in enumerate(self.means)
        ) / (count - 2)
        correlation = min(0.95, max(0.0, self.correlation))
        error = sqrt(rest / spread * (1 + correlation) / (1 - correlation))
        worst = abs(slope) + student_quantile(count - 2) * error
        return worst * horizon_values / self.size / 2 / mean if mean else inf

    def halves_agree(self, *, within: float) -> bool:
        """Return whether the means of both halves differ by at most half of the mean's interval.

        That is the standard error of their difference: a steady window passes two checks out of three; the
        longer a drifting window is, the less likely it is to pass. A relative difference of `within` is
        tolerated.
        """
        half = len(self.means) // 2
        if half < MIN_BATCHES // 2:
            return False
        first, second = sum(self.means[:half]) / half, sum(self.means[-half:]) / half
        mean = (first + second) / 2
        return abs(second - first) <= max(self.relative_half_width(), within) * abs(mean)


def rarest_seen_stall(num_steps: int) -> int:
    """Return the largest N for which at most 5 % of windows miss stalls in one step out of N.

    (1 − 1/N)ⁿ ≤ 0.05, exactly binomial; N is about n/3, the rule of three (Hanley and Lippman-Hand 1983, If
    Nothing Goes Wrong, Is Everything All Right?, https://doi.org/10.1001/jama.1983.03330370053031).

    >>> rarest_seen_stall(1500), rarest_seen_stall(100)
    (501, 33)
    """
    return max(1, int(1 / -expm1(log(UNSEEN) / num_steps)))


def student_quantile(freedom: int) -> float:
    """Return Student's two-sided 95 % quantile, accurate to 0.001 from 15 degrees of freedom.

    Uses the expansion in 1/degrees from Abramowitz and Stegun, 26.7.5.

    >>> round(student_quantile(19), 3), round(student_quantile(63), 3)
    (2.093, 1.998)
    """
    first = (Z**3 + Z) / 4
    second = (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96
    return Z + first / freedom + second / freedom**2


class PrecisionLimit:
    """Stop once the mean step time is precise enough: all ranks at one step, for the same reason.

    `agree` returns the smallest of the ranks' proposals. Every step time must be passed to `take`.
    """

    def __init__(
        self,
        target: float,
        *,
        min_steps: int,
        limit_s: float,
        agree: Callable[[int], int],
        step_s: float | None = None,
    ) -> None:
        self._target = target
        self._min_steps = min_steps
        self._limit_s = limit_s
        self._agree = agree
        self._floor_s = min(FLOOR_S, FLOOR_SHARE * limit_s)
        self._step_s = step_s
        self._batches = BatchMeans()
        self._widths: list[float] = []
        self._drifts: list[bool] = []
        self.stop_reason = ""

    @property
    def half_width(self) -> float | None:
        """The relative half-width of the interval so far; None while there are too few steps."""
        width = self._batches.relative_half_width()
        return None if width == inf else width

    @property
    def rarest_seen_stall(self) -> int | None:
        """The steps so far can reveal stalls in one step out of this many; None before the first step."""
        return rarest_seen_stall(self._batches.num_values) if self._batches.num_values else None

    def take(self, times_s: Sequence[float]) -> None:
        """Add the times of finished steps."""
        if self._batches.add(times_s):
            self._widths.append(self._batches.relative_half_width())
            self._drifts.append(self._batches.size >= LONG and self._batches.correlation > INDEPENDENT)

    def next_steps(self, *, done: int, elapsed_s: float, capacity: int) -> int:
        """Return the agreed number of steps until the next check; 0 ends the window."""
        wish = self._agree(TIME_UP if elapsed_s >= self._limit_s else self._wish(elapsed_s))
        if wish != MORE:
            self.stop_reason = REASONS[wish]
            return 0
        step_s = elapsed_s / done if done else self._step_s
        left_s = max(0.0, self._limit_s - elapsed_s)
        return self._agree(min(capacity, steps_within(min(left_s, CHUNK_S), step_s=step_s)))

    def _wish(self, elapsed_s: float) -> int:
        batches = self._batches
        if batches.num_values < self._min_steps:
            return MORE
        if elapsed_s < self._floor_s and not self._drift_is_excluded(elapsed_s):
            return MORE
        if batches.correlation <= INDEPENDENT and batches.relative_half_width() <= self._target:
            return REACHED if batches.halves_agree(within=SMALL * self._target) else MORE
        return NO_HELP if self._grows_no_narrower() else MORE

    def _drift_is_excluded(self, elapsed_s: float) -> bool:
        """Return whether the steps rule out a drift of the mean beyond the target before time is up."""
        done = self._batches.num_values
        if done < EARLY_STEPS:
            return False
        return self._batches.relative_drift(self._limit_s / elapsed_s * done) <= self._target

    def _grows_no_narrower(self) -> bool:
        """Compare the interval with one at a quarter of the steps: a drifting series has no fixed mean."""
        widths = self._widths
        if len(widths) < 4 or not all(self._drifts[-2:]):
            return False
        return all(widths[place] > NO_NARROWER * widths[place - 2] for place in (-1, -2))


def feed_plan(plan: StepPlan, sink: StepTimesSink) -> StepTimesSink:
    """Return a sink that passes step times to `sink` and, if the plan depends on them, to the plan."""
    take: StepTimesSink | None = getattr(plan, "take", None)
    if take is None:
        return sink

    def both(times_s: Sequence[float]) -> None:
        take(times_s)
        sink(times_s)

    return both
