"""When is the mean step time known well enough? The plan of a window that is measured by precision.

In: step times as they are finished. Out: how many steps come next, and why there are no more: the interval of
the mean is as narrow as was asked and both halves of the window agree, it grows no narrower, or time ends.
The interval is within this one launch, by batch means, which allow for steps that depend on those before them
(Law and Kelton 1984, https://doi.org/10.1287/opre.32.6.1221). Standard library only, and constant in memory.

What did not happen in a window cannot widen its interval: so there is a floor of time, and the window says
which stalls it was too short to see. The floor is lifted for steps that hardly scatter: where they themselves
show that no drift is under way which over the time limit would move the mean by more than was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import expm1, inf, log, sqrt

from gpuproof.worker.engine.loop import CHUNK_S, StepPlan, StepTimesSink, steps_within

MAX_BATCHES = 64
"""Batches are joined in pairs when there are so many; from then on there are always half of it or more."""
MIN_BATCHES = 20
"""Under this, the spread of the batch means is hardly known."""
INDEPENDENT = 0.3
"""Neighbouring batch means that are correlated by more are too short to stand for independent pieces."""
NO_NARROWER = 0.8
"""Four times the steps halve the interval of independent ones; where less is gained, more do not help."""
LONG = 32
"""Steps in a batch from which a correlation of batch means is one of a drift, not of neighbouring steps."""
FLOOR_S = 15.0
"""Seconds that are measured unless drift is excluded before: clocks settle meanwhile …"""
FLOOR_SHARE = 0.5
"""… but no more than this share of the time limit."""
EARLY_STEPS = 325
"""Steps from which drift can be excluded: a stall in every 300 steps falls into so many, chunk and all."""
SMALL = 0.25
"""Of the precision asked for: steps that hardly scatter drift by little things."""
UNSEEN = 0.05
"""The chance to see none of the stalls of which a window says that it would have seen them."""
ROUNDING = 1e-12
"""Relative differences of equal times, from adding them up."""
Z = 1.959964
"""The normal quantile of a two-sided 95 % interval."""

TIME_UP, MORE, NO_HELP, REACHED = range(4)
"""What a rank wants, in the order in which the ranks' wishes count: the smallest is what all do."""
REASONS = {TIME_UP: "time limit", NO_HELP: "more samples do not help", REACHED: "precision reached"}


class BatchMeans:
    """Means of equal batches of a series, between 32 and 64 of them however long the series is."""

    def __init__(self) -> None:
        self.size = 1
        self.means: list[float] = []
        self.num_values = 0
        self._sum = 0.0
        self._in_batch = 0

    def add(self, values: Sequence[float]) -> bool:
        """Take the next values; say whether batches were joined, which doubles their size."""
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
        """Of each batch mean with the next, corrected for what so few understate it by; 1 if not known."""
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
        """Half the 95 % interval of the mean, over the mean; infinite while there are too few batches."""
        count = len(self.means)
        if count < MIN_BATCHES:
            return inf
        mean = sum(self.means) / count
        variance = sum((value - mean) ** 2 for value in self.means) / (count - 1)
        correlation = min(0.95, max(0.0, self.correlation))
        error = sqrt(variance / count * (1 + correlation) / (1 - correlation))
        return student_quantile(count - 1) * error / mean if mean else inf

    def relative_drift(self, horizon_values: float) -> float:
        """Return by how much the mean may be off, did a drift go on for so many values; infinite if unknown.

        The far end of the 95 % interval of a straight line's slope through the batch means, times half the
        horizon, over the mean. Batch means that depend on each other widen it, as they do that of the mean.
        """
        count = len(self.means)
        if count < MIN_BATCHES:
            return inf
        middle, mean = (count - 1) / 2, sum(self.means) / count
        spread = count * (count * count - 1) / 12  # sum of the squared distances of 0 … count - 1 from middle
        slope = sum((place - middle) * value for place, value in enumerate(self.means)) / spread
        rest = sum(
            (value - mean - slope * (place - middle)) ** 2 for place, value in enumerate(self.means)
        ) / (count - 2)
        correlation = min(0.95, max(0.0, self.correlation))
        error = sqrt(rest / spread * (1 + correlation) / (1 - correlation))
        worst = abs(slope) + student_quantile(count - 2) * error
        return worst * horizon_values / self.size / 2 / mean if mean else inf

    def halves_agree(self, *, within: float) -> bool:
        """Say whether the means of both halves differ by no more than half the interval of the mean.

        That is the standard error of their difference: a steady window passes two looks of three, and one
        that drifts fewer and fewer the longer it is. A relative difference of `within` is let pass.
        """
        half = len(self.means) // 2
        if half < MIN_BATCHES // 2:
            return False
        first, second = sum(self.means[:half]) / half, sum(self.means[-half:]) / half
        mean = (first + second) / 2
        return abs(second - first) <= max(self.relative_half_width(), within) * abs(mean)


def rarest_seen_stall(num_steps: int) -> int:
    """Return the largest N for which at most 5 % of windows miss stalls that come in one step of N.

    (1 − 1/N)ⁿ ≤ 0.05, exactly binomial; N is about n/3, the rule of three (Hanley and Lippman-Hand 1983, If
    Nothing Goes Wrong, Is Everything All Right?, https://doi.org/10.1001/jama.1983.03330370053031).

    >>> rarest_seen_stall(1500), rarest_seen_stall(100)
    (501, 33)
    """
    return max(1, int(1 / -expm1(log(UNSEEN) / num_steps)))


def student_quantile(freedom: int) -> float:
    """Return Student's two-sided 95 % quantile, to 0.001 from 15 degrees of freedom on.

    By the expansion in 1/degrees of Abramowitz and Stegun, 26.7.5.

    >>> round(student_quantile(19), 3), round(student_quantile(63), 3)
    (2.093, 1.998)
    """
    first = (Z**3 + Z) / 4
    second = (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96
    return Z + first / freedom + second / freedom**2


class PrecisionLimit:
    """Stop when the mean step time is known well enough, all ranks after the same step and for one reason.

    `agree` returns the smallest of the ranks' proposals. `take` must be given every step time.
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
        """The relative half-width so far; None while too few steps are known."""
        width = self._batches.relative_half_width()
        return None if width == inf else width

    @property
    def rarest_seen_stall(self) -> int | None:
        """One in so many steps is the rarest stall that so many steps show; None before the first."""
        return rarest_seen_stall(self._batches.num_values) if self._batches.num_values else None

    def take(self, times_s: Sequence[float]) -> None:
        """Add finished steps."""
        if self._batches.add(times_s):
            self._widths.append(self._batches.relative_half_width())
            self._drifts.append(self._batches.size >= LONG and self._batches.correlation > INDEPENDENT)

    def next_steps(self, *, done: int, elapsed_s: float, capacity: int) -> int:
        """Return the agreed number of steps until precision is looked at again; 0 when all is known."""
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
        """Say whether the steps so far show that none would move the mean, over the limit, by the target."""
        done = self._batches.num_values
        if done < EARLY_STEPS:
            return False
        return self._batches.relative_drift(self._limit_s / elapsed_s * done) <= self._target

    def _grows_no_narrower(self) -> bool:
        """Compare the interval with that of a quarter of the steps: what drifts has no mean to find."""
        widths = self._widths
        if len(widths) < 4 or not all(self._drifts[-2:]):
            return False
        return all(widths[place] > NO_NARROWER * widths[place - 2] for place in (-1, -2))


def feed_plan(plan: StepPlan, sink: StepTimesSink) -> StepTimesSink:
    """Return a sink that gives step times to `sink`, and to the plan if it stops by them."""
    take: StepTimesSink | None = getattr(plan, "take", None)
    if take is None:
        return sink

    def both(times_s: Sequence[float]) -> None:
        take(times_s)
        sink(times_s)

    return both
