"""A window on a GPU at its power cap: starts once the controller settles, and lasts long enough.

Between chunks, about once a second, the driver is queried about the cap: for its counter of capped time, and
for the current state, since a counter that does not change proves nothing. If the cap is never reached, the
window is as requested. All ranks settle and keep measuring for as long as any of them has to. The
controller's period is determined with the method of `statistics.power_cap`, but without numpy, which may be
missing on a node. This takes 5 to 10 ms, which does not affect a device with queued work.
"""

from __future__ import annotations

import cmath
import os
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from statistics import linear_regression
from typing import TYPE_CHECKING

from gpuproof.accelerators.choose import accelerator_of
from gpuproof.devices.base import THROTTLE_REASONS
from gpuproof.records.readings import named_among
from gpuproof.records.what_ran import AT_CAP, AT_POWER_CAP, PowerCap
from gpuproof.records.work.window import WindowSpec
from gpuproof.worker.engine.loop import CHUNK_S, StepPlan, run_window, steps_within
from gpuproof.worker.engine.stopping import feed_plan
from gpuproof.worker.rank.recorder import Recorder, StepTimesWriter
from gpuproof.worker.rank.window import least_window_s
from gpuproof.worker.step.preparation import Prepared

if TYPE_CHECKING:
    from gpuproof.devices.guard import GuardedDevices


COUNTER, CLOCK, POWER = "throttle_time_power_cap_s", "clock_sm_mhz", "power_w"
FROM_S = 1.0
"""Minimum planned duration of a window that waits for a cap; a shorter one ends before a controller changes
direction."""
LOOK_S = 0.5
"""Time to wait for a cap to be reached: an H100 reached its cap after 0.1 s of matmuls."""
SETTLE_S = 3.0
"""Time for the controller to settle: three times the observed period of one second."""
EVERY_S = 1.0
NEEDED_PERIODS, NEEDED_S = 20, 20.0
"""Values as in `statistics.power_cap`. A shorter period may be a cycle of the workload itself (e.g. every
tenth step takes longer), and a window based on it could contain only a few periods of the controller."""
BINS = 512
"""Number of parts into which a window is divided to search for a period; a power of two."""
PERIODIC = 0.5
"""Minimum mean autocorrelation at a period and its multiples for the period to count …"""
FUNDAMENTAL = 0.5
"""… and the shortest lag with a score of at least this fraction of the best score is the period."""
SAME_PERIOD = 0.15
FLAT = 1e-3
"""Minimum difference between rates: smaller differences come from clock rounding, not from a controller."""


class CapMeter:
    """Tracks how long one device has been at its power cap since the first check."""

    def __init__(self, devices: GuardedDevices, uuid: str | None) -> None:
        places = named_among([uuid or ""], [identity.uuid for identity in devices.identities])
        devices.select([devices.identities[place].physical_index for place in places])
        self._devices = devices
        self.missing = None if places else "the driver does not list the device"
        self._looked_s: float | None = None
        self._total_s: float | None = None
        self._seen_s = self._counted_s = 0.0
        self.first: dict[str, float] = {}
        """Clock and power at the first check after the start."""

    @property
    def capped_s(self) -> float:
        """Seconds at the cap: the driver's count or, if that count does not change, the observed time."""
        return max(self._seen_s, self._counted_s)

    def look(self, elapsed_s: float, *, every_s: float = EVERY_S) -> None:
        """Query the driver, `elapsed_s` after the start, unless it has just been queried."""
        if self.missing or (self._looked_s is not None and elapsed_s - self._looked_s < every_s):
            return
        ((values, missing),) = self._devices.gather((THROTTLE_REASONS, COUNTER, CLOCK, POWER)).values()
        if elapsed_s > 0 and not self.first:
            self.first = {name: values[name] for name in (CLOCK, POWER) if name in values}
        reasons, total_s = values.get(THROTTLE_REASONS), values.get(COUNTER)
        if reasons is None and total_s is None:
            self.missing = missing.get(THROTTLE_REASONS) or "the driver does not report it"
        if self._looked_s is not None and "power_cap" in (reasons or ()):
            self._seen_s += elapsed_s - self._looked_s
        if self._total_s is not None and total_s is not None:
            self._counted_s += max(0.0, total_s - self._total_s)
        self._looked_s, self._total_s = elapsed_s, total_s

    def restart(self) -> None:
        """Start counting now."""
        self._looked_s = self._total_s = None
        self._seen_s = self._counted_s = 0.0

    def close(self) -> None:
        """Release the driver."""
        self._devices.close()


class Settling:
    """Run until the cap has not been reached for some time, or its controller has had time to settle."""

    def __init__(self, meter: CapMeter, *, agree: Callable[[int], int], step_s: float | None) -> None:
        self.stop_reason = "settled"
        self.met_s: float | None = None
        """Time after the start at which any rank was first seen at the cap."""
        self._meter, self._agree, self._step_s = meter, agree, step_s

    def next_steps(self, *, done: int, elapsed_s: float, capacity: int) -> int:
        """Return the number of steps until the next check of the cap; 0 once it has settled."""
        self._meter.look(elapsed_s, every_s=0.0)
        if self.met_s is None and _any(self._meter.capped_s > 0, self._agree):
            self.met_s = elapsed_s
        end_s = LOOK_S if self.met_s is None else self.met_s + SETTLE_S
        if not _any(elapsed_s < end_s, self._agree):
            return 0
        step_s = elapsed_s / done if done else self._step_s
        return self._agree(min(capacity, steps_within(CHUNK_S / 2, step_s=step_s)))


class LongEnoughAtCap:
    """If the device was at its cap, extends the requested window to as many periods as needed."""

    def __init__(
        self, plan: StepPlan, meter: CapMeter, *, limit_s: float, agree: Callable[[int], int]
    ) -> None:
        self._plan, self._meter, self._agree, self._limit_s = plan, meter, agree, limit_s
        self.period_s: float | None = None
        self.needed_s = min(NEEDED_S, limit_s)
        self.stop_reason = plan.stop_reason
        self.take = feed_plan(plan, self._keep)
        self._look_s = NEEDED_S
        self._goes_on = False
        self._ends_s = array("d", [0.0])

    def _keep(self, times_s: Sequence[float]) -> None:
        if self._ends_s[-1] <= self._limit_s:
            self._ends_s.extend(accumulate(times_s, initial=self._ends_s.pop()))

    def find_period(self) -> None:
        """Find the controller's period in the steps so far, and from it the required window duration."""
        self.period_s = period_of_ends(self._ends_s[1:])
        self.needed_s = min(max(NEEDED_S, NEEDED_PERIODS * (self.period_s or 0.0)), self._limit_s)

    def share(self, elapsed_s: float) -> float:
        """Return the fraction of time spent at the cap so far."""
        return min(1.0, self._meter.capped_s / elapsed_s) if elapsed_s else 0.0

    def next_steps(self, *, done: int, elapsed_s: float, capacity: int) -> int:
        """Return the next steps of the plan, or further steps if the window has to continue."""
        self._meter.look(elapsed_s)
        if not self._goes_on:
            steps = self._plan.next_steps(done=done, elapsed_s=elapsed_s, capacity=capacity)
            self.stop_reason = self._plan.stop_reason
            if steps:
                return steps
        step_s = self._ends_s[-1] / (len(self._ends_s) - 1) if len(self._ends_s) > 1 else 0.0
        step_s = max(step_s, elapsed_s / max(done, 1))  # steps in flight count as well
        left_s = self._left_s(done * step_s)
        if not _any(self.share(elapsed_s) >= AT_CAP and left_s > 0, self._agree):
            return 0
        self._goes_on, self.stop_reason = True, f"{self.needed_s:.3g} s {AT_POWER_CAP}"
        chunk_s = min(CHUNK_S, left_s) if left_s > 0 else CHUNK_S
        return self._agree(min(capacity, steps_within(chunk_s, step_s=step_s)))

    def _left_s(self, elapsed_s: float) -> float:
        """Return how much longer the window has to be, based on a period that persists throughout it."""
        if elapsed_s >= self._look_s:
            self.find_period()
            self._look_s = max(elapsed_s + EVERY_S, self.needed_s if self.period_s else 0.0)
        return self.needed_s - elapsed_s


def _any(wish: bool, agree: Callable[[int], int]) -> bool:
    """Return whether any rank requests it; `agree` returns the smallest of all proposals."""
    return agree(-int(wish)) < 0


class PowerCapWatch:
    """Handles one rank's device at its power cap, from settling to the end of the window."""

    def __init__(self, meter: CapMeter, *, limit_s: float, settled_after_s: float | None) -> None:
        self._meter, self._limit_s, self._settled_after_s = meter, limit_s, settled_after_s
        self._plan: LongEnoughAtCap | None = None

    def lengthen(self, plan: StepPlan, agree: Callable[[int], int]) -> StepPlan:
        """Return the window's plan, extended as needed."""
        self._meter.restart()
        self._plan = LongEnoughAtCap(plan, self._meter, limit_s=self._limit_s, agree=agree)
        return self._plan

    def record(self, wall_s: float) -> PowerCap:
        """Return what was observed in a window of this duration, and release the driver."""
        plan, meter = self._plan, self._meter
        assert plan is not None
        meter.look(wall_s, every_s=0.0)
        meter.close()
        if plan.share(wall_s) >= AT_CAP:
            plan.find_period()
        return PowerCap(
            share=None if meter.missing else plan.share(wall_s),
            period_s=plan.period_s,
            settled_after_s=self._settled_after_s,
            needed_s=plan.needed_s,
            missing=meter.missing,
            first_clock_mhz=meter.first.get(CLOCK),
            first_power_w=meter.first.get(POWER),
        )


def settle(
    prepared: Prepared, recorder: Recorder, *, step_s: float | None, steps: int | None
) -> PowerCapWatch | None:
    """Run steps until a power cap has settled; None if the window is too short or does not wait.

    `step_s` is the duration of a warm-up step; `steps` is the number of steps in the window, if the window is
    limited by step count.
    """
    window, agree = prepared.work.window, prepared.ranks.agree
    limit_s = window.power_cap_limit_s
    if prepared.device.type == "cpu" or limit_s is None or not window.enabled:
        return None
    least_s = least_window_s(prepared.work, accelerator_of(prepared.device).min_window_s)
    if not _any(_planned_s(window, steps, step_s, least_s) >= FROM_S, agree):
        return None
    from gpuproof.devices.discovery import open_devices  # for windows on a GPU

    uuid = accelerator_of(prepared.device).properties(prepared.device).uuid
    meter = CapMeter(open_devices(os.environ), uuid)
    plan = Settling(meter, agree=agree, step_s=step_s)
    with recorder.phase("settle", expected_s=SETTLE_S):
        writer = StepTimesWriter(recorder, "settle", keep_times=True)
        timing = run_window(prepared.step, prepared.clock, plan, writer)
        writer.flush()
    settled_after_s = None if plan.met_s is None else timing.wall_s
    return PowerCapWatch(meter, limit_s=limit_s, settled_after_s=settled_after_s)


def _planned_s(window: WindowSpec, steps: int | None, step_s: float | None, least_s: float) -> float:
    """Return the planned duration of a window; 0 if its end depends on precision or only on steps."""
    if window.measure_by == "precision" or (window.measure_by == "steps" and not least_s):
        return 0.0
    return window.limit_s or max(least_s, (steps or 0) * (step_s or 0.0))


def period_of_ends(ends_s: Sequence[float]) -> float | None:
    """Return the period, in seconds, of steps that ended at these times; None if there is none."""
    if len(ends_s) < 2 or ends_s[-1] <= 0:
        return None
    every_s = ends_s[-1] / min(BINS, len(ends_s) // 2)
    done = [_steps_done(ends_s, place * every_s) for place in range(round(ends_s[-1] / every_s) + 1)]
    lag = _lag([late - early for early, late in pairwise(done)])
    return None if lag is None else lag * every_s


def _steps_done(ends_s: Sequence[float], moment_s: float) -> float:
    """Return how many steps were finished by a given time, including a fraction of the one in flight."""
    place = min(bisect_left(ends_s, moment_s), len(ends_s) - 1)
    begin_s = ends_s[place - 1] if place else 0.0
    step_s = ends_s[place] - begin_s
    return place + (min(1.0, (moment_s - begin_s) / step_s) if step_s else 1.0)


def _lag(values: Sequence[float]) -> int | None:
    most = len(values) // 4
    if most < 4 or max(values) - min(values) < FLAT * max(values):
        return None
    correlation = _autocorrelation(values, most)
    falls = next((lag for lag, value in enumerate(correlation) if value < 0), most)
    scores = {
        lag: _score(correlation, lag)
        for lag in range(falls + 1, most)
        if correlation[lag] > 0 and correlation[lag] >= max(correlation[lag - 1], correlation[lag + 1])
    }
    best = max(scores.values(), default=0.0)
    if best < PERIODIC:
        return None
    first = next(lag for lag, score in scores.items() if score >= FUNDAMENTAL * best)
    return max((lag for lag in scores if first <= lag <= (1 + SAME_PERIOD) * first), key=lambda x: scores[x])


def _autocorrelation(values: Sequence[float], most: int) -> list[float]:
    """Return the autocorrelation at lags from 0 to `most`, after detrending and frequency weighting."""
    line = linear_regression(range(len(values)), values)
    away = [value - line.intercept - line.slope * place for place, value in enumerate(values)]
    size = 2 * BINS
    waves = _fourier([complex(value) for value in away] + [0j] * (size - len(away)))
    power = [abs(wave) ** 2 * min(order, size - order) for order, wave in enumerate(waves)]
    products = [product.real for product in _fourier([complex(value) for value in power])[: most + 1]]
    return [product / products[0] / (1 - lag / len(values)) for lag, product in enumerate(products)]


def _fourier(values: list[complex]) -> list[complex]:
    """Return the discrete Fourier transform of 2ⁿ values, for any n (Cooley and Tukey 1965)."""
    if len(values) == 1:
        return values
    even, odd = _fourier(values[::2]), _fourier(values[1::2])
    turned = [cmath.rect(1, -2 * cmath.pi * k / len(values)) * value for k, value in enumerate(odd)]
    sums = [one + other for one, other in zip(even, turned, strict=True)]
    return sums + [one - other for one, other in zip(even, turned, strict=True)]


def _score(correlation: Sequence[float], lag: int) -> float:
    """Return the mean autocorrelation at a lag and near each multiple, since periods vary in length."""
    peaks = [correlation[lag]]
    for multiple in range(2 * lag, len(correlation), lag):
        near = max(1, multiple // 20)
        peaks.append(max(correlation[multiple - near : multiple + near + 1]))
    return sum(peaks) / len(peaks)
