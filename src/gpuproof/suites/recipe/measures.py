"""A recipe's metrics: throughput or latency, step times, data waits, energy, and workload results.

In latency mode, each batch is awaited and no other batch is queued behind it, so there is no throughput. In
throughput mode, a step time is not a latency, because steps are queued.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import floor, fsum

from gpuproof.base import units
from gpuproof.launches.communication import phases_of
from gpuproof.launches.explanations import RunEnergy
from gpuproof.launches.launch import Launch
from gpuproof.launches.limits import data_wait_share, idle_share, idle_text
from gpuproof.launches.point_measures import (
    ENERGY,
    ITEMS,
    RATE_ONE_BY_ONE,
    STEP,
    STEPS,
    THROUGHPUT,
    TIME_PER_OUTPUT,
    WINDOW,
)
from gpuproof.launches.power_cap import FROM_IDLE_S, continuation, rate_from_idle
from gpuproof.records.case import InferenceWork
from gpuproof.records.result import LaunchValue, Measure
from gpuproof.records.work.data import InferencePhase
from gpuproof.statistics.estimate import Interval, Unavailable, as_record
from gpuproof.statistics.percentiles import Percentile, percentile
from gpuproof.suites.recipe.ranks import device_measures
from gpuproof.suites.recipe.work import memory_measures, memory_parts, work_measures
from gpuproof.suites.results import interval_text, seconds_measure, with_interval
from gpuproof.verdict.summary import RunSummary

PHASE, PART = "phase", "memory_part"
"""Labels that identify the parts of a step and of a rank's memory."""
LATENCY_OF: Mapping[InferencePhase, str] = {
    "forward": "latency",
    "prefill": "time to first token",
    "decode": TIME_PER_OUTPUT,
}
COMPARED: Mapping[InferencePhase, tuple[str, ...]] = {
    "forward": (),
    "prefill": (THROUGHPUT, "mean step", "MFU", "energy"),
    "decode": (THROUGHPUT, "per sequence", LATENCY_OF["decode"], "memory bandwidth use", "energy"),
}
"""Measures by which engines are compared, in order; a page starts with them."""


def latency_title(launch: Launch) -> str:
    """Return the name of the latency that a step measures, for a launch in latency mode."""
    work = launch.case.work
    assert isinstance(work, InferenceWork)
    return LATENCY_OF[work.inference.phase]


def recipe_measures(
    summary: RunSummary, rates: tuple[LaunchValue, ...], energy: RunEnergy | None
) -> tuple[Measure, ...]:
    """Return every result, starting with the run's main one; none if nothing was measured.

    `rates` are the throughputs of the launches; `energy` is the total over all of them, None if no energy was
    read.
    """
    if not summary.launches:
        return ()
    if summary.launches[0].case.measures_latency:
        measures = [*_latencies(summary, rates), *memory_measures(summary)]
    else:
        measures = [
            *_throughput(summary, rates),
            _mean_step(summary),
            *_waits(summary),
            *_idle(summary),
            *_casts(summary),
            *_step_percentiles(summary, rates),
            *work_measures(summary),
        ]
    measures += _energy(summary, energy)
    work = summary.launches[0].case.work
    if isinstance(work, InferenceWork) and not work.measures_latency:
        measures += _of_generation(summary, work)
        first = COMPARED[work.inference.phase]
        measures.sort(key=lambda x: first.index(x.name) if x.name in first else len(first))
    if not summary.launches[0].case.measures_latency:
        measures += device_measures(summary, rates)
    return tuple(replace(measure, validity=summary.validity) for measure in measures)


def _throughput(summary: RunSummary, rates: tuple[LaunchValue, ...]) -> Iterator[Measure]:
    total = rate_measure(summary, rates)
    yield total
    yield from _from_idle(summary)
    rate, item, num_devices = total.value, summary.launches[0].setup.item, summary.launches[0].num_devices
    if num_devices > 1 and rate is not None:
        yield Measure(
            name="per device",
            value=rate / num_devices,
            unit=f"{item}/s",
            text=units.rate(rate / num_devices, item),
            detail=f"total over {num_devices} {_parts(summary)}",
            statistic="mean",
            better="higher",
        )


def _from_idle(summary: RunSummary) -> Iterator[Measure]:
    """Report the first launch's speed before it hit its power cap; throughput is the sustained speed."""
    first = summary.launches[0]
    rate, cap = rate_from_idle(first), first.slowest.power_cap
    if rate is not None and cap is not None:
        clock = "unknown" if cap.first_clock_mhz is None else f"{cap.first_clock_mhz:,.0f} MHz"
        power = "unknown" if cap.first_power_w is None else f"{cap.first_power_w:,.0f} W"
        yield Measure(
            name="throughput from idle",
            value=rate,
            unit=f"{first.setup.item}/s",
            text=units.rate(rate, first.setup.item),
            detail=f"in the first {units.seconds(FROM_IDLE_S)} after the warm-up, SM clock "
            f"{clock}, power {power}; for the sustained rate see throughput",
            statistic="mean",
        )


def _of_generation(summary: RunSummary, work: InferenceWork) -> Iterator[Measure]:
    """Yield the decoding speed per sequence and the time per token."""
    item, num = summary.launches[0].setup.item, summary.launches[0].samples_per_step_total
    if work.inference.phase != "decode" or summary.rate is None or not num:
        return
    rate, batch = summary.rate / num, f"{num} sequence{'s' * (num > 1)} at once"
    text = units.rate(rate, item)
    yield Measure(name="per sequence", value=rate, unit=f"{item}/s", text=text, detail=batch)
    detail = f"mean step of {batch}; steps were queued and not awaited"
    yield replace(
        seconds_measure(LATENCY_OF["decode"], summary.mean_step_s, detail), statistic="mean", better=None
    )


def _parts(summary: RunSummary) -> str:
    return "ranks" if summary.launches[0].setup.replicas is None else "replicas"


def _mean_step(summary: RunSummary) -> Measure:
    num_steps = sum(launch.slowest.num_steps for launch in summary.launches)
    detail = f"{units.count(num_steps)} steps in {units.seconds(summary.window_s)}{_reason_stopped(summary)}"
    measure = seconds_measure("mean step", summary.mean_step_s, detail)
    return replace(measure, statistic="mean", num_samples=num_steps)


def _reason_stopped(summary: RunSummary) -> str:
    """Return why windows with a target precision stopped or continued; others stopped as planned."""
    if summary.launches[0].case.model_work.window.target is None:
        return "".join(f"; {text}" for text in _continued(summary))
    reasons = Counter(launch.slowest.stop_reason for launch in summary.launches)
    counts = ", ".join(f"{reason} in {times} launches" for reason, times in reasons.items())
    return f"; {next(iter(reasons)) if len(reasons) == 1 else counts}{_unseen(summary)}"


def _continued(summary: RunSummary) -> tuple[str, ...]:
    """Return the requested length of windows that were extended, and why they were."""
    texts = dict.fromkeys(continuation(launch.slowest) for launch in summary.launches)
    return tuple(text for text in texts if text)


def _unseen(summary: RunSummary) -> str:
    """Return which stalls are too rare to detect; empty if an earlier version did not record this."""
    seen = [launch.slowest.rarest_seen_stall for launch in summary.launches]
    least_seen = [one_in for one_in in seen if one_in is not None]
    return (
        f"; a stall rarer than one in {units.count(min(least_seen))} steps would have gone undetected"
        if least_seen
        else ""
    )


def _waits(summary: RunSummary) -> Iterator[Measure]:
    """Report the fraction of the windows spent waiting for data; none if no loader ran."""
    waited = data_wait_share(summary.launches)
    if waited is not None:
        yield Measure(
            name="waited for data",
            value=waited,
            unit="share",
            text=units.share(waited),
            detail="fraction of the window, for the rank that waited longest; included in step times",
            better="lower",
        )


def _idle(summary: RunSummary) -> Iterator[Measure]:
    """Report the fraction of time the device was idle, from the launch with the highest lower bound."""
    shares = [share for share in map(idle_share, summary.launches) if isinstance(share, Interval)]
    if shares:
        most = max(shares, key=lambda share: share.low)
        yield Measure(
            name="device idle",
            value=most.centre,
            unit="share",
            text=units.share(most.centre),
            detail=f"{idle_text(most)}, measured in {most.num_samples} blocks of steps after the window",
            better="lower",
            interval=as_record(most),
        )


def _casts(summary: RunSummary) -> Iterator[Measure]:
    """Report the fraction of a step spent casting to fp8; none if a compiler fuses the casts."""
    shares = [
        casts.s_per_step / launch.mean_step_s for launch in summary.launches for casts in launch.fp8_casts
    ]
    if shares:
        yield Measure(
            name="casts to fp8",
            value=max(shares),
            unit="share",
            text=units.share(max(shares)),
            detail=(
                "fraction of a step, timed separately after the window; "
                "training.compile.enabled=true fuses the casts"
            ),
            better="lower",
        )


def _medians(summary: RunSummary, rates: tuple[LaunchValue, ...]) -> tuple[LaunchValue, ...]:
    """Return the median step time of each launch that has one."""
    medians = (percentile(launch.step_times_s, 50).value for launch in summary.launches)
    pairs = zip(rates, medians, strict=True)
    return tuple(replace(launch, value=median) for launch, median in pairs if median is not None)


def _step_percentiles(summary: RunSummary, rates: tuple[LaunchValue, ...]) -> Iterator[Measure]:
    interval = summary.step_s_interval
    for p in summary.step_percentiles:
        detail = f"of {units.count(p.num_samples)} steps"
        if p.reason:
            detail = f"{_needs(p)}{_bound(p)}"
        if not p.num_samples:
            detail = "step times were not stored (benchmark.log_step_times is false)"
        measure = _percentile_measure(f"p{p.q:g} step", p, detail)
        if p.q == 50 and isinstance(interval, Interval) and p.value is not None:
            detail = interval_text(interval, "s")
            launches = _medians(summary, rates)
            measure = replace(measure, detail=detail, interval=as_record(interval), launches=launches)
        yield measure


def _percentile_measure(name: str, figure: Percentile, detail: str) -> Measure:
    measure = seconds_measure(name, figure.value, detail, missing=detail if figure.value is None else None)
    return replace(measure, statistic=f"p{figure.q:g}", num_samples=figure.num_samples)


LOWEST_BOUND = 90.0
"""Lowest percentile that may be reported in place of a higher one that is unavailable."""


def _bound(figure: Percentile) -> str:
    if figure.value is not None or figure.bound is None or figure.bound_q is None:
        return ""
    if figure.bound_q < LOWEST_BOUND:
        return ""  # half of the steps are below the median, so it says nothing about the slowest steps
    return f"; p{floor(figure.bound_q)} is at most {units.seconds(figure.bound)}"


def _needs(figure: Percentile) -> str:
    needed, measured = units.count(figure.num_needed), units.count(figure.num_samples)
    return f"p{figure.q:g} needs {needed} steps (have {measured})"


def _latencies(summary: RunSummary, rates: tuple[LaunchValue, ...]) -> Iterator[Measure]:
    """Yield the results of latency mode, starting with the median and its interval."""
    what = latency_title(summary.launches[0])
    median, *tail = summary.step_percentiles
    times_s = [time_s for launch in summary.launches for time_s in launch.step_times_s]
    missing = Unavailable(reason=_needs(median))
    yield with_interval(
        f"p{median.q:g} {what}",
        median.value,
        "s",
        units.seconds(median.value),
        summary.step_s_interval if median.value is not None else missing,
        better="lower",
        launches=_medians(summary, rates),
        statistic="p50",
        num_samples=median.num_samples,
    )
    counted = f"of {units.count(len(times_s))} steps, each of which was awaited"
    for p in tail:
        detail = f"{counted}; at most {units.seconds(p.bound)} at {p.confidence:.0%}"
        detail = _needs(p) if p.value is None else detail
        yield _percentile_measure(f"p{p.q:g} {what}", p, detail)
    mean_s = fsum(times_s) / len(times_s)
    for name, value_s in (("mean", mean_s), ("shortest", min(times_s)), ("longest", max(times_s))):
        yield replace(seconds_measure(f"{name} {what}", value_s, counted), statistic=name)


def _energy(summary: RunSummary, energy: RunEnergy | None) -> Iterator[Measure]:
    if energy is None:
        return
    item = summary.launches[0].setup.item
    per_item = None if energy.energy_j is None else energy.energy_j / summary.items_total
    yield Measure(
        name="energy",
        value=per_item,
        unit=f"J/{item}",
        text=units.MISSING
        if per_item is None
        else f"{units.significant(per_item)} J/{item.removesuffix('s')}",
        detail=energy.text,
        better="lower",
        missing=energy.text if per_item is None else None,
    )


def total_measures(
    summary: RunSummary, rates: tuple[LaunchValue, ...], energy: RunEnergy | None
) -> tuple[Measure, ...]:
    """Return items, steps, windows and energy of all launches; none if nothing was measured.

    No direction is marked as better, because rates and step times express the same thing, which should not be
    evaluated twice.
    """
    if not summary.launches:
        return ()
    measures = [*_of_launches(summary, rates), *_total_energy(energy)]
    measures += [*_step_phases(summary), *_memory_parts(summary)]
    if summary.launches[0].case.measures_latency:
        measures.append(replace(rate_measure(summary, rates), name=RATE_ONE_BY_ONE, better=None))
    return tuple(replace(measure, validity=summary.validity) for measure in measures)


def rate_measure(summary: RunSummary, rates: tuple[LaunchValue, ...]) -> Measure:
    """Return the items per second over all launches."""
    item, rate = summary.launches[0].setup.item, summary.rate
    text, interval = units.rate(rate, item), summary.throughput_interval
    return with_interval(
        THROUGHPUT,
        rate,
        f"{item}/s",
        text,
        interval,
        better="higher",
        launches=rates,
        statistic="total",
        labels={"num_devices": summary.launches[0].num_devices},
    )


def _of_launches(summary: RunSummary, rates: tuple[LaunchValue, ...]) -> Iterator[Measure]:
    launches, item = summary.launches, summary.launches[0].setup.item
    num_steps = sum(launch.slowest.num_steps for launch in launches)
    for name, value, unit in (
        (ITEMS, summary.items_total, item),
        (STEPS, num_steps, "steps"),
        (WINDOW, summary.window_s, "s"),
        (STEP, summary.mean_step_s, "s"),
    ):
        values = zip(rates, launches, strict=True)
        yield Measure(
            detail="; ".join(_continued(summary)) if name == STEPS else "",
            name=name,
            value=value,
            unit=unit,
            text=units.seconds(value) if unit == "s" else f"{units.count(int(value or 0))} {unit}",
            statistic="mean" if name == STEP else "total",
            launches=tuple(replace(rate, value=launch.figures[name]) for rate, launch in values),
        )


def _total_energy(energy: RunEnergy | None) -> Iterator[Measure]:
    if energy is not None and energy.energy_j is not None:
        text = f"{units.significant(energy.energy_j)} J"
        yield Measure(name=ENERGY, value=energy.energy_j, unit="J", text=text, statistic="total")


def _step_phases(summary: RunSummary) -> Iterator[Measure]:
    phases = phases_of(summary.launches)
    for name, value_s in {} if isinstance(phases, str) else phases.parts_s.items():
        measure = seconds_measure(f"{name} in a step", value_s, "after the window, between marks")
        yield replace(measure, better=None, statistic="mean", labels={PHASE: name})


def _memory_parts(summary: RunSummary) -> Iterator[Measure]:
    for name, value in memory_parts(summary.launches).items():
        yield Measure(
            name=f"memory of {name}",
            value=value,
            unit="bytes",
            text=units.memory(value),
            detail="estimated for the largest rank",
            labels={PART: name},
        )
