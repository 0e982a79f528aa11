"""Summarise a whole run: all launches of one recipe together, with intervals and all warnings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from gpuproof.hardware.boards import BandwidthPeak, Peak, find_memory_peak
from gpuproof.launches.launch import Launch, summarize_launch, throughput
from gpuproof.launches.point_measures import THROUGHPUT
from gpuproof.launches.power_cap import capped_window
from gpuproof.readings.evidence import WindowReadings
from gpuproof.records.collected import CaseRecords
from gpuproof.records.result import Doubt, Validity, worst
from gpuproof.records.run import Failure
from gpuproof.statistics.estimate import Interval, Unavailable
from gpuproof.statistics.launches import (
    interval_of_mean,
    interval_of_rates,
    interval_of_step_times,
    not_negative,
)
from gpuproof.statistics.percentiles import Percentile, percentile
from gpuproof.statistics.power_cap import PowerCapWindow
from gpuproof.verdict.doubts.base import Measured
from gpuproof.verdict.doubts.rules import (
    doubts_about,
    doubts_about_devices,
    doubts_about_differences,
    joined_doubts,
    weighed,
)

if TYPE_CHECKING:
    from gpuproof.launches.launch import Roofline

PERCENTILES = (50.0, 90.0, 95.0, 99.0)

NO_REPLICATES = (
    "launches forked from one process share its choice of algorithms and its memory layout, so "
    "they do not reveal differences between fresh processes (run.start=exec starts fresh ones)"
)
PeakLookup = Callable[[str, str], Peak | None]
MemoryPeakLookup = Callable[[str], BandwidthPeak | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """Results of a run. Rates are totals over all ranks; times are in seconds."""

    launches: tuple[Launch, ...]
    failures: tuple[Failure, ...]
    """The first failure of each launch that failed or was cut short."""
    num_planned: int
    validity: Validity | None
    """None if nothing was measured."""
    doubts: tuple[Doubt, ...]
    items_total: int
    window_s: float
    throughput_interval: Interval | Unavailable
    """Rate in items per second over all launches."""
    step_s_interval: Interval | Unavailable
    """Interval of the median step time."""
    step_percentiles: tuple[Percentile, ...]
    flops_per_s_per_device: float | None
    peak: Peak | None
    power_caps: tuple[PowerCapWindow | None, ...] = ()
    """Window of each launch at the power cap; None for a launch that did not reach the cap."""
    memory_peak: BandwidthPeak | None = None
    bytes_per_s_per_device: float | None = None
    roofline: Roofline | None = None
    """The roofline from the first launch that measured ceilings."""

    @property
    def rate(self) -> float | None:
        """Items per second: total items of all launches divided by the total duration of their windows."""
        return throughput(self.items_total, self.window_s) if self.launches else None

    @property
    def mean_step_s(self) -> float | None:
        """Mean step time over all launches."""
        steps = sum(launch.slowest.num_steps for launch in self.launches)
        return self.window_s / steps if steps else None


def summarize(
    cases: Sequence[CaseRecords],
    *,
    num_planned: int,
    find_peak: PeakLookup,
    find_memory_peak: MemoryPeakLookup = find_memory_peak,
    observed: Sequence[Doubt] = (),
    clock_max_mhz: float | None = None,
    readings: Mapping[tuple[str, int], Sequence[WindowReadings]] | None = None,
) -> RunSummary:
    """Summarise one recipe's launches; the last three were read alongside, `readings` per launch."""
    launches = tuple(launch for records in cases if (launch := summarize_launch(records)) is not None)
    peak, memory_peak = _peaks(launches, find_peak, find_memory_peak)
    step_s_interval = _step_interval(launches)
    power_caps = _power_caps(launches, readings or {})
    interval = _throughput_interval(launches, power_caps)
    against = partial(Measured, peak=peak, memory_peak=memory_peak, clock_max_mhz=clock_max_mhz)
    measured = [against(launch=x, power_cap=cap) for x, cap in zip(launches, power_caps, strict=True)]
    doubts = _doubts(measured, [*_differences(launches, interval, step_s_interval), *observed])
    return RunSummary(
        launches=launches,
        failures=tuple(f for records in cases if records.status != "done" and (f := records.primary_failure)),
        num_planned=num_planned,
        validity=worst(doubts) if launches else None,
        doubts=doubts,
        items_total=sum(launch.items_total for launch in launches),
        window_s=sum(launch.slowest.wall_s for launch in launches),
        throughput_interval=interval,
        step_s_interval=not_negative(step_s_interval),
        step_percentiles=_step_percentiles(launches),
        flops_per_s_per_device=_mean([launch.flops_per_s_per_device for launch in launches]),
        peak=peak,
        power_caps=power_caps,
        memory_peak=memory_peak,
        bytes_per_s_per_device=_mean([launch.bytes_per_s_per_device for launch in launches]),
        roofline=next((launch.roofline for launch in launches if launch.ceilings), None),
    )


def _doubts(measured: Sequence[Measured], others: Sequence[Doubt]) -> tuple[Doubt, ...]:
    """Return every warning, most severe first, merging those of several launches."""
    joined = joined_doubts([doubts_about(one) for one in measured])
    is_of_device = bool(measured) and measured[0].launch.case.model_work.window.of_device
    return weighed([*joined, *others], is_of_device=is_of_device)


def _power_caps(
    launches: Sequence[Launch], readings: Mapping[tuple[str, int], Sequence[WindowReadings]]
) -> tuple[PowerCapWindow | None, ...]:
    """Evaluate each launch that reached its power cap."""
    keys = ((launch.case.case_id, launch.case.replicate) for launch in launches)
    return tuple(capped_window(x, readings.get(key, ())) for x, key in zip(launches, keys, strict=True))


def _peaks(
    launches: Sequence[Launch], find_peak: PeakLookup, find_memory_peak: MemoryPeakLookup
) -> tuple[Peak | None, BandwidthPeak | None]:
    """Return the peaks of the launches' device; no peak is that of several models."""
    if len({launch.setup.device.name for launch in launches}) != 1:
        return None, None
    name, precision = launches[0].setup.device.name, launches[0].case.model_work.training.precision
    return find_peak(name, precision), find_memory_peak(name)


def _differences(
    launches: Sequence[Launch], rate: Interval | Unavailable, step_s: Interval | Unavailable
) -> Sequence[Doubt]:
    """Return warnings if devices, throughput, or the median latency differ too much between launches."""
    is_latency = bool(launches) and launches[0].case.measures_latency
    spread, of = (step_s, "median latency") if is_latency else (rate, "throughput")
    names = {launch.setup.device.name for launch in launches}
    return [*doubts_about_devices(names), *doubts_about_differences(spread, of=of)]


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


def are_replicates(launches: Sequence[Launch]) -> bool:
    """Report whether an interval between launches is possible: each launch must be a fresh process."""
    return all(launch.start == "exec" for launch in launches)


def _step_interval(launches: Sequence[Launch]) -> Interval | Unavailable:
    if len(launches) > 1 and not are_replicates(launches):
        return Unavailable(reason=NO_REPLICATES)
    return interval_of_step_times([launch.step_times_s for launch in launches])


def _throughput_interval(
    launches: Sequence[Launch], power_caps: Sequence[PowerCapWindow | None]
) -> Interval | Unavailable:
    """Use Student's t over launches; for a single launch, use the interval of its mean step time."""
    if len(launches) > 1 and not are_replicates(launches):
        return Unavailable(reason=NO_REPLICATES)
    if len(launches) != 1:
        return interval_of_rates([launch.figures[THROUGHPUT] for launch in launches])
    step = interval_of_mean(launches[0].step_times_s) if power_caps[0] is None else power_caps[0].interval
    if isinstance(step, Unavailable):
        return step
    centre = launches[0].figures[THROUGHPUT]
    return replace(
        step, low=centre * step.centre / step.high, high=centre * step.centre / step.low, centre=centre
    )


def _step_percentiles(launches: Sequence[Launch]) -> tuple[Percentile, ...]:
    pooled = [time for launch in launches for time in launch.step_times_s]
    return tuple(percentile(pooled, q) for q in PERCENTILES)
