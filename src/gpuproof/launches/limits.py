"""Which limits applied to a launch: the one with the largest gain if removed, then the others.

Input: a launch, the readings taken during it, and the peak rates of its device. Output: `LaunchLimits`,
sorted by gain, the largest first. A time limit (host, data loading, communication, power cap, temperature) is
expressed as the fraction of the window that would be saved without it. If no time limit applies, only memory
bandwidth and compute remain, and they count only if the launch came close to their ceiling. If no limit is
found, the limit is reported as unknown, with the reason. A gain is an upper
bound: an idle device clocks higher than a busy one, and removing one wait may cause another.

The time spent waiting for data is taken from the rank that waited longest, since all others wait for it in
every step; without a loader it is None. A device's idle time is computed from how often it had reached the
end of its queue, and from the busy time per step in blocks of steps after the window, with an interval over
the blocks. Time spent waiting for a loader is excluded. The device is assumed to be equally busy per step in
the window and after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gpuproof.base import units
from gpuproof.hardware.boards import BandwidthPeak, Peak
from gpuproof.launches.communication import exposed_s, sync_difference_s
from gpuproof.launches.launch import Launch
from gpuproof.readings.evidence import WindowReadings
from gpuproof.readings.limits import (
    ARTICLE,
    HOST_BOUND,
    UNKNOWN,
    LaunchLimit,
    LaunchLimits,
    LimitName,
    caps_read,
    host_busy,
    limit_measure,
    measure_of_limit,
)
from gpuproof.records.result import LIMITED_BY, THE_RUN, WHOLE, Measure
from gpuproof.records.run import DeviceBusy, Window
from gpuproof.statistics.estimate import Interval, Unavailable
from gpuproof.statistics.launches import interval_of_launches

CEILINGS: Final[tuple[LimitName, ...]] = ("memory bandwidth", "compute")
"""Limits considered if nothing else limits a launch; they come last."""
DATA_BOUND = 0.05
"""Fraction of the window above which waiting for data counts as a limiting factor. Without the wait, a device
would run 1 / (1 - 0.05) = 1.05 times as fast, a difference as large as an interval that counts as wide (±5
%): such a rate also depends on the loader."""
COMMUNICATION_BOUND = 0.05
"""Fraction of a step above which the time added by collectives counts as a limit."""
NEAR_MEASURED = 0.7
"""Fraction of a ceiling that must be reached for it to be the limit: for a ceiling measured on the device
itself with a plain workload …"""
NEAR_PEAK = 0.5
"""… and for a data sheet's ceiling, which no real workload reaches: the largest GEMMs get to 70 % of it."""
ANSWERED = 0.95
"""Fraction of the offered requests that must be answered for the rate to count as sustained."""
NOT_KNOWN: Final[Mapping[LimitName, str]] = {
    "compute": "its fraction of the compute peak is not known",
    "memory bandwidth": "its memory traffic is not known",
}


def limits_of(
    launch: Launch,
    *,
    readings: Sequence[WindowReadings] = (),
    peak: Peak | None = None,
    memory_peak: BandwidthPeak | None = None,
) -> LaunchLimits:
    """Determine what limited a launch, from its records, its readings and its device's peaks."""
    found = [*recorded_limits(launch), *caps_read(readings), *_host_read(launch, readings)]
    found += _ceilings(launch, peak, memory_peak)
    found.sort(key=lambda limit: (limit.name in CEILINGS, -limit.gain))
    return LaunchLimits(found=tuple(found), unknown="" if found else _unknown(launch, peak, memory_peak))


def limits_of_requests(offered_per_s: float | None, answered_per_s: float, *, is_ours: bool) -> LaunchLimits:
    """Determine what limited a server's requests per second; `offered_per_s` None: all sent at once."""
    if offered_per_s is not None and answered_per_s >= ANSWERED * offered_per_s:
        answered = units.share(min(1.0, answered_per_s / offered_per_s))
        text = f"{units.rate(offered_per_s, 'requests')} were offered, and {answered} of them were answered"
        return LaunchLimits(found=(LaunchLimit(name="requested rate", share=1.0, gain=0.0, text=text),))
    why = "its device's idle time was not measured" if is_ours else "the server's host was not monitored"
    return LaunchLimits(found=(), unknown=f"it answered as many as it could, and {why}")


def communication_limit(text: str) -> LaunchLimits:
    """Return the limit for a launch that only communicates."""
    return LaunchLimits(found=(LaunchLimit(name="communication", share=1.0, gain=0.0, text=text),))


def recorded_limits(launch: Launch) -> Iterator[LaunchLimit]:
    """Yield the limits shown by a launch's own records: host, data loading and communication."""
    # in these cases the device waits by design
    if launch.slowest.clock != "host" and not launch.case.measures_latency:
        yield from _host(launch)
    window = waiting_window(launch)
    waited = 0.0 if window is None else (window.data_wait_s or 0.0) / window.wall_s
    if window is not None and waited > DATA_BOUND:
        who = f" (rank {window.rank})" if launch.world_size > 1 else ""
        text = f"steps waited for data for {units.share(waited)} of the window{who}"
        yield _of_time("data loading", launch, waited, text)
    talked = exposed_s(launch) or sync_difference_s(launch) or 0.0
    if (share := talked / launch.mean_step_s) > COMMUNICATION_BOUND:
        text = f"collectives account for {units.share(min(1.0, share))} of each step"
        yield _of_time("communication", launch, min(1.0, share), text)


def _host(launch: Launch) -> Iterator[LaunchLimit]:
    """Find a device that waits for its host, either between steps or between the kernels of a step."""
    idle, gap = idle_share(launch), 1 - launch.slowest.steps_s / launch.slowest.wall_s
    if isinstance(idle, Interval) and idle.low > HOST_BOUND:
        yield _of_time("host", launch, idle.centre, f"GPU idle for {idle_text(idle)}", most=idle.high)
    elif gap > HOST_BOUND:
        yield _of_time("host", launch, gap, f"GPU idle between steps for {units.share(gap)} of the window")


def _of_time(
    name: LimitName, launch: Launch, share: float, text: str, *, most: float | None = None
) -> LaunchLimit:
    """Return a limit that applied for part of the window, with the highest rate possible without it."""
    rest = 1 - (share if most is None else most)
    if rest > 0 and launch.setups:
        rate = units.rate(launch.items_per_s_total / rest, launch.setup.item)
        text += f"; with these kernels and clocks at most about {rate}"
    return LaunchLimit(name=name, share=share, gain=share / max(1 - share, 1e-9), text=text)


def _host_read(launch: Launch, readings: Sequence[WindowReadings]) -> Iterator[LaunchLimit]:
    """Yield the host as the limit if idle time was not measured and one CPU was busy but no GPU was."""
    if launch.slowest.clock != "host" and idle_share(launch) is None:
        return  # this was checked, and the device did not wait
    if isinstance(idle_share(launch), Interval):
        return
    for host in readings:
        yield from host_busy(host.host, host.devices)


def _ceilings(launch: Launch, peak: Peak | None, memory_peak: BandwidthPeak | None) -> Iterator[LaunchLimit]:
    """Yield the ceiling that the launch came closest to, if it came close enough."""
    near = [
        (share, name, of)
        for name, (share, least, of) in _shares(launch, peak, memory_peak).items()
        if share >= least
    ]
    for reached, name, of in sorted(near, reverse=True)[:1]:
        yield LaunchLimit(
            name=name, share=reached, gain=max(0.0, 1 / reached - 1), text=f"{units.share(reached)} of {of}"
        )


def _shares(
    launch: Launch, peak: Peak | None, memory_peak: BandwidthPeak | None
) -> dict[LimitName, tuple[float, float, str]]:
    """Return, per known ceiling, the fraction reached, the limiting fraction, and its name."""
    roofline, shares = launch.roofline, dict[LimitName, tuple[float, float, str]]()
    measured = (None, None) if roofline is None else (roofline.compute, roofline.memory)
    flops, traffic = launch.flops_per_s_per_device, launch.bytes_per_s_per_device
    if flops and measured[0] is not None:
        shares["compute"] = flops / measured[0].value_per_s, NEAR_MEASURED, "the measured FLOP/s"
    elif flops and peak is not None:
        shares["compute"] = flops / peak.flops_per_s, NEAR_PEAK, f"the {peak.dtype} peak"
    if traffic and measured[1] is not None:
        shares["memory bandwidth"] = (
            traffic / measured[1].value_per_s,
            NEAR_MEASURED,
            "the measured bandwidth",
        )
    elif traffic and memory_peak is not None:
        shares["memory bandwidth"] = (
            traffic / memory_peak.bytes_per_s,
            NEAR_PEAK,
            "the data sheet's bandwidth",
        )
    return shares


def _unknown(launch: Launch, peak: Peak | None, memory_peak: BandwidthPeak | None) -> str:
    """Explain why none of the limits that were checked applies to the launch."""
    idle, shares = idle_share(launch), _shares(launch, peak, memory_peak)
    if launch.case.measures_latency:
        return "the host waits for each batch, so the device is idle between batches"
    if launch.slowest.clock == "host":
        return "how busy this workload kept the CPU is not known"
    if isinstance(idle, Unavailable):
        return f"how long the GPU was idle is not known: {idle.reason}"
    if isinstance(idle, Interval) and idle.high > HOST_BOUND:
        return (
            f"the GPU was idle for {idle_text(idle)}, which is too uncertain to tell whether it "
            "waited for its host"
        )
    reached = [f"{units.share(share)} of {of}" for share, _, of in shares.values()]
    lacking = [text for name, text in NOT_KNOWN.items() if name not in shares]
    at = f", at {' and '.join(reached)}" if reached else ""
    return f"the GPU was busy{at}{'; ' if lacking else ''}{', and '.join(lacking)}"


def limits_together(limits: Sequence[LaunchLimits], measures: Sequence[Measure], noun: str) -> list[Measure]:
    """Return what limited a run, as a measure: from its launches, or from its points or hosts."""
    if limits:
        return [limit_measure(limits)]
    parts = [measure for measure in measures if measure.name == LIMITED_BY]
    if noun == "hosts":  # the last measure of a host applies to all of its points
        parts = list({part.subject: part for part in parts}.values())
    if len(parts) == 1:
        return [replace(parts[0], case=THE_RUN, subject=WHOLE)]
    return [_limit_of_parts(parts, noun)] if parts else []


def _limit_of_parts(parts: Sequence[Measure], noun: str) -> Measure:
    """Return what limited a run that has several points or hosts: the most frequent limit."""
    names = Counter(part.text for part in parts)
    name, times = names.most_common(1)[0]
    others = [f", {ARTICLE.get(other, other)} at {num}" for other, num in names.items() if other != name]
    detail = f"at {times} of {len(parts)} {noun}{''.join(others)}"
    labels: dict[str, Any] = {"share": times / len(parts)}
    if name == UNKNOWN:
        first = next(part for part in parts if part.text == name)
        labels["why"] = first.labels.get("why", first.detail)
        detail += f": {labels['why']}"
    return measure_of_limit(name, detail, labels)


def data_wait_share(launches: Sequence[Launch]) -> float | None:
    """Return the fraction of all windows spent waiting; None if no loader ran.

    >>> data_wait_share([]) is None
    True
    """
    waits = [waiting_window(launch) for launch in launches]
    pairs = [(w.data_wait_s, w.wall_s) for w in waits if w is not None and w.data_wait_s is not None]
    if not pairs or len(pairs) < len(launches):
        return None
    return sum(wait_s for wait_s, _ in pairs) / sum(wall_s for _, wall_s in pairs)


def waiting_window(launch: Launch) -> Window | None:
    """Return the window of the rank that waited longest; None if waiting was not measured."""
    windows = [window for window in launch.windows if window.data_wait_s is not None]
    return max(windows, key=lambda window: window.data_wait_s or 0.0, default=None)


def idle_share(launch: Launch) -> Interval | Unavailable | None:
    """Return the idle fraction of the rank with the most idle device, by the interval's lower end.

    None if no device was seen waiting, so nothing was checked; the reason if the check was inconclusive.
    """
    by_rank = {window.rank: window for window in launch.windows}
    shares = [_of_rank(by_rank[busy.rank], busy) for busy in launch.busy if busy.rank in by_rank]
    measured = [interval for interval in shares if isinstance(interval, Interval)]
    return max(measured, key=lambda interval: interval.low) if measured else next(iter(shares), None)


def idle_text(idle: Interval) -> str:
    """Format the fraction of the window, with its interval if that adds information.

    >>> idle_text(Interval(low=0.5, high=0.52, centre=0.51, confidence=0.95, method="", num_launches=1,
    ...                    num_samples=6, between_launches=False))
    '51 % of the window (50 % to 52 %)'
    """
    low, high = units.share(idle.low), units.share(idle.high)
    return f"{units.share(idle.centre)} of the window" + (f" ({low} to {high})" if low != high else "")


def _of_rank(window: Window, busy: DeviceBusy) -> Interval | Unavailable:
    if busy.missing is not None:
        return Unavailable(reason=busy.missing)
    # blocks are treated as independent, as launches are
    per_step = interval_of_launches(busy.busy_s_per_step)
    if isinstance(per_step, Unavailable):
        return Unavailable(reason="the device was checked only once")
    step_s = window.wall_s / window.num_steps
    waited = (window.data_wait_s or 0.0) / window.wall_s

    def idle(busy_s: float) -> float:
        return min(1.0, max(0.0, 1 - busy_s / step_s - waited))

    return Interval(
        low=idle(per_step.high),
        high=idle(per_step.low),
        centre=idle(per_step.centre),
        confidence=per_step.confidence,
        method="Student's t-interval over blocks of steps after the window",
        num_launches=1,
        num_samples=len(busy.busy_s_per_step),
        between_launches=False,
    )
