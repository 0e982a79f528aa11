"""A window on a GPU at its power cap: it begins when the cap's controller has settled, and is long enough.

The cap is asked for between chunks, about once a second, of the driver: by its count of capped time, and by
what it says now, since a counter that stands still proves nothing. Where the cap is never met, the window is
as it was asked for. All ranks settle, and go on, as long as any of them has to. The period of the controller
is found by the method of `statistics.power_cap`, without numpy, which a node need not have; it takes 5 to 10
ms, which a device that is given its work ahead does not notice.
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
"""A window that is asked for less is over before a controller turns."""
LOOK_S = 0.5
"""An H100 met its cap after 0.1 s of products."""
SETTLE_S = 3.0
"""Three periods of the one second that it showed."""
EVERY_S = 1.0
NEEDED_PERIODS, NEEDED_S = 20, 20.0
"""As `statistics.power_cap` has them. A shorter period may be a rhythm of the work (each tenth step is
longer), so that a window of less than these seconds could hold few of the controller's."""
BINS = 512
"""Parts of a window in which a period is looked for; a power of two."""
PERIODIC = 0.5
"""Mean autocorrelation at a period and its multiples from which it is one …"""
FUNDAMENTAL = 0.5
"""… and the share of the best score that the shortest lag has which is the period."""
SAME_PERIOD = 0.15
FLAT = 1e-3
"""Rates that differ by less show how a clock is rounded, and no controller."""


class CapMeter:
    """For how long one device was at its power cap since it was first looked at."""

    def __init__(self, devices: GuardedDevices, uuid: str | None) -> None:
        places = named_among([uuid or ""], [identity.uuid for identity in devices.identities])
        devices.select([devices.identities[place].physical_index for place in places])
        self._devices = devices
        self.missing = None if places else "the driver does not list the device"
        self._looked_s: float | None = None
        self._total_s: float | None = None
        self._seen_s = self._counted_s = 0.0
        self.first: dict[str, float] = {}
        """Clock and power, at the first look after the beginning."""

    @property
    def capped_s(self) -> float:
        """Seconds at the cap: the driver's count, or what was seen where that stands still."""
        return max(self._seen_s, self._counted_s)

    def look(self, elapsed_s: float, *, every_s: float = EVERY_S) -> None:
        """Ask the driver, `elapsed_s` after the beginning, if it was not asked just now."""
        if self.missing or (self._looked_s is not None and elapsed_s - self._looked_s < every_s):
            return
        ((values, missing),) = self._devices.gather((THROTTLE_REASONS, COUNTER, CLOCK, POWER)).values()
        if elapsed_s > 0 and not self.first:
            self.first = {name: values[name] for name in (CLOCK, POWER) if name in values}
        reasons, total_s = values.get(THROTTLE_REASONS), values.get(COUNTER)
        if reasons is None and total_s is None:
            self.missing = missing.get(THROTTLE_REASONS) or "the driver does not tell"
        if self._looked_s is not None and "power_cap" in (reasons or ()):
            self._seen_s += elapsed_s - self._looked_s
        if self._total_s is not None and total_s is not None:
            self._counted_s += max(0.0, total_s - self._total_s)
        self._looked_s, self._total_s = elapsed_s, total_s

    def restart(self) -> None:
        """Count from here on."""
        self._looked_s = self._total_s = None
        self._seen_s = self._counted_s = 0.0

    def close(self) -> None:
        """Let go of the driver."""
        self._devices.close()


class Settling:
    """Run until the cap was not met for a moment, or met for so long that its controller has settled."""

    def __init__(self, meter: CapMeter, *, agree: Callable[[int], int], step_s: float | None) -> None:
        self.stop_reason = "settled"
        self.met_s: float | None = None
        """When any rank was seen at the cap, after the beginning."""
        self._meter, self._agree, self._step_s = meter, agree, step_s

    def next_steps(self, *, done: int, elapsed_s: float, capacity: int) -> int:
        """Return the steps until the cap is looked at again; 0 when it has settled."""
        self._meter.look(elapsed_s, every_s=0.0)
        if self.met_s is None and _any(self._meter.capped_s > 0, self._agree):
            self.met_s = elapsed_s
        end_s = LOOK_S if self.met_s is None else self.met_s + SETTLE_S
        if not _any(elapsed_s < end_s, self._agree):
            return 0
        step_s = elapsed_s / done if done else self._step_s
        return self._agree(min(capacity, steps_within(CHUNK_S / 2, step_s=step_s)))


class LongEnoughAtCap:
    """Go on after what was asked for, where the device was at its cap, for as many periods as are needed."""

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
        """Look for the controller's period in the steps so far, and so how long the window has to be."""
        self.period_s = period_of_ends(self._ends_s[1:])
        self.needed_s = min(max(NEEDED_S, NEEDED_PERIODS * (self.period_s or 0.0)), self._limit_s)

    def share(self, elapsed_s: float) -> float:
        """Return the share of the time so far that was spent at the cap."""
        return min(1.0, self._meter.capped_s / elapsed_s) if elapsed_s else 0.0

    def next_steps(self, *, done: int, elapsed_s: float, capacity: int) -> int:
        """Return the plan's next steps, and more where the window has to go on."""
        self._meter.look(elapsed_s)
        if not self._goes_on:
            steps = self._plan.next_steps(done=done, elapsed_s=elapsed_s, capacity=capacity)
            self.stop_reason = self._plan.stop_reason
            if steps:
                return steps
        step_s = self._ends_s[-1] / (len(self._ends_s) - 1) if len(self._ends_s) > 1 else 0.0
        step_s = max(step_s, elapsed_s / max(done, 1))  # steps that are under way take time, too
        left_s = self._left_s(done * step_s)
        if not _any(self.share(elapsed_s) >= AT_CAP and left_s > 0, self._agree):
            return 0
        self._goes_on, self.stop_reason = True, f"{self.needed_s:.3g} s {AT_POWER_CAP}"
        chunk_s = min(CHUNK_S, left_s) if left_s > 0 else CHUNK_S
        return self._agree(min(capacity, steps_within(chunk_s, step_s=step_s)))

    def _left_s(self, elapsed_s: float) -> float:
        """Return how much longer the window has to be, by a period that shows in all of it."""
        if elapsed_s >= self._look_s:
            self.find_period()
            self._look_s = max(elapsed_s + EVERY_S, self.needed_s if self.period_s else 0.0)
        return self.needed_s - elapsed_s


def _any(wish: bool, agree: Callable[[int], int]) -> bool:
    """Whether any rank wishes so; `agree` gives the least of all proposals."""
    return agree(-int(wish)) < 0


class PowerCapWatch:
    """One rank's device at its power cap, from the settling to the end of the window."""

    def __init__(self, meter: CapMeter, *, limit_s: float, settled_after_s: float | None) -> None:
        self._meter, self._limit_s, self._settled_after_s = meter, limit_s, settled_after_s
        self._plan: LongEnoughAtCap | None = None

    def lengthen(self, plan: StepPlan, agree: Callable[[int], int]) -> StepPlan:
        """Return the window's plan, made long enough."""
        self._meter.restart()
        self._plan = LongEnoughAtCap(plan, self._meter, limit_s=self._limit_s, agree=agree)
        return self._plan

    def record(self, wall_s: float) -> PowerCap:
        """Return what was seen in a window of so many seconds, and let go of the driver."""
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
    """Run steps until a power cap has settled; None where a window is too short for one, or is not to wait.

    `step_s` is a step of the warm-up, `steps` those of the window, where it has a number of them.
    """
    window, agree = prepared.work.window, prepared.ranks.agree
    limit_s = window.power_cap_limit_s
    if prepared.device.type == "cpu" or limit_s is None or not window.enabled:
        return None
    least_s = least_window_s(prepared.work, accelerator_of(prepared.device).min_window_s)
    if not _any(_planned_s(window, steps, step_s, least_s) >= FROM_S, agree):
        return None
    from gpuproof.devices.discovery import open_devices  # of windows on a GPU

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
    """Return how long a window will take; 0 where its precision ends it, or nothing but its steps may."""
    if window.measure_by == "precision" or (window.measure_by == "steps" and not least_s):
        return 0.0
    return window.limit_s or max(least_s, (steps or 0) * (step_s or 0.0))


def period_of_ends(ends_s: Sequence[float]) -> float | None:
    """Return the period of steps that ended at these times of a window, in seconds; None if none shows."""
    if len(ends_s) < 2 or ends_s[-1] <= 0:
        return None
    every_s = ends_s[-1] / min(BINS, len(ends_s) // 2)
    done = [_steps_done(ends_s, place * every_s) for place in range(round(ends_s[-1] / every_s) + 1)]
    lag = _lag([late - early for early, late in pairwise(done)])
    return None if lag is None else lag * every_s


def _steps_done(ends_s: Sequence[float], moment_s: float) -> float:
    """Return the steps until a moment, with the share of the one that was under way."""
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
    """Return it at lags from 0 to `most`, without a trend, with components weighted by their frequency."""
    line = linear_regression(range(len(values)), values)
    away = [value - line.intercept - line.slope * place for place, value in enumerate(values)]
    size = 2 * BINS
    waves = _fourier([complex(value) for value in away] + [0j] * (size - len(away)))
    power = [abs(wave) ** 2 * min(order, size - order) for order, wave in enumerate(waves)]
    products = [product.real for product in _fourier([complex(value) for value in power])[: most + 1]]
    return [product / products[0] / (1 - lag / len(values)) for lag, product in enumerate(products)]


def _fourier(values: list[complex]) -> list[complex]:
    """Return the discrete Fourier transform of a power of two of values (Cooley and Tukey 1965)."""
    if len(values) == 1:
        return values
    even, odd = _fourier(values[::2]), _fourier(values[1::2])
    turned = [cmath.rect(1, -2 * cmath.pi * k / len(values)) * value for k, value in enumerate(odd)]
    sums = [one + other for one, other in zip(even, turned, strict=True)]
    return sums + [one - other for one, other in zip(even, turned, strict=True)]


def _score(correlation: Sequence[float], lag: int) -> float:
    """Return the mean of the autocorrelation at a lag and near each multiple, as periods differ in length."""
    peaks = [correlation[lag]]
    for multiple in range(2 * lag, len(correlation), lag):
        near = max(1, multiple // 20)
        peaks.append(max(correlation[multiple - near : multiple + near + 1]))
    return sum(peaks) / len(peaks)
