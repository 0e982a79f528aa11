"""What limited a launch: the one thing whose removal would raise its rate most, and what else applies.

In: a launch, what was read beside it, and the peaks of its device. Out: `LaunchLimits`, the largest gain
first. A time limit (host, data loading, communication, power cap, temperature) is a share of the window that
a step could do without. Memory bandwidth and compute are left where none of these holds, and need a ceiling
that the launch came close to. Where nothing of this is found, the limit is unknown, with the reason.

A gain is an upper bound: an idle device clocks higher than a busy one, and what removes one wait may add
another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from gpuproof import units
from gpuproof.analysis.explain import AT_CAP, power_limit_text
from gpuproof.analysis.idleness import idle_share, idle_text, waiting_window
from gpuproof.analysis.launch import Launch
from gpuproof.analysis.scale.communication import exposed_s, sync_difference_s
from gpuproof.hardware import BandwidthPeak, Peak
from gpuproof.readings.window_readings import DeviceWindow, HostWindow, WindowReadings
from gpuproof.records.result import LIMITED_BY, THE_RUN, WHOLE, Measure
from gpuproof.statistics.estimate import Interval, Unavailable

LimitName = Literal[
    "host",
    "data loading",
    "communication",
    "power cap",
    "temperature",
    "memory bandwidth",
    "compute",
    "requested rate",
]
CEILINGS: Final[tuple[LimitName, ...]] = ("memory bandwidth", "compute")
"""What remains where nothing else holds a launch back; they follow all others."""
UNKNOWN: Final = "unknown"
HOST_BOUND = 0.10
"""Share of the window in which a device has nothing to do: the lower end of its interval, or the gaps between
steps that were timed on it."""
DATA_BOUND = 0.05
"""Share of the window from which waiting for data counts. Without it a device would do 1 / (1 - 0.05) = 1.05
times the work, as far off as an interval that is called wide (±5 %): such a rate is the loader's as well."""
COMMUNICATION_BOUND = 0.05
"""Share of a step that collectives add to it, likewise."""
NEAR_MEASURED = 0.7
"""Share of a ceiling that plain work reached on the spot from which it is the limit …"""
NEAR_PEAK = 0.5
"""… and of a data sheet's, which no real work reaches: the largest products get to 70 % of it."""
ANSWERED = 0.95
"""Share of the offered requests from which on the rate was kept."""
UNUSED = 0.99
"""Share of the window of which a GPU that says it idled did nothing."""
BUSY_CORE_PERCENT: Final = 98.0
LOW_UTILISATION_PERCENT: Final = 80.0
CAPS: Final[Mapping[LimitName, tuple[str, ...]]] = {
    "power cap": ("power_cap",),
    "temperature": ("thermal", "thermal_software", "thermal_hardware", "thermal_memory"),
}
"""The throttle reasons that each stands for."""
NOT_KNOWN: Final[Mapping[LimitName, str]] = {
    "compute": "its share of the compute peak is not known",
    "memory bandwidth": "its memory traffic is not known",
}
ARTICLE: Final[Mapping[str, str]] = {name: f"the {name}" for name in ("host", "power cap", "requested rate")}
"""Names as a sentence has them; the others stand alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchLimit:
    """One thing that limited a launch."""

    name: LimitName
    share: float
    """Of the window that it took, 0 to 1; of a ceiling, how much of it was reached."""
    gain: float
    """By how much the rate could rise at most without it, relative."""
    text: str
    """What was measured, as in "GPU idle 68 % of the window"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchLimits:
    """What limited a launch or a run, the largest gain first."""

    found: tuple[LaunchLimit, ...]
    unknown: str = ""
    """Why nothing was found."""

    @property
    def name(self) -> str:
        """Of the first, or that it is unknown."""
        return self.found[0].name if self.found else UNKNOWN


def limits_of(
    launch: Launch,
    *,
    readings: Sequence[WindowReadings] = (),
    peak: Peak | None = None,
    memory_peak: BandwidthPeak | None = None,
) -> LaunchLimits:
    """Say what limited a launch, from its records, the readings beside it and its device's peaks."""
    found = [*recorded_limits(launch), *_caps(readings), *_host_read(launch, readings)]
    found += _ceilings(launch, peak, memory_peak)
    found.sort(key=lambda limit: (limit.name in CEILINGS, -limit.gain))
    return LaunchLimits(found=tuple(found), unknown="" if found else _unknown(launch, peak, memory_peak))


def limits_of_readings(readings: WindowReadings) -> LaunchLimits:
    """Say what limited a command of which only readings are known."""
    unknown = "its readings show no cap and no wait for the host" if readings.devices else "no GPU was read"
    return with_readings(LaunchLimits(found=(), unknown=unknown), [readings])


def with_readings(limits: LaunchLimits, readings: Sequence[WindowReadings]) -> LaunchLimits:
    """Return limits that the work itself tells, and after them those that the readings beside it show."""
    read = [*_caps(readings), *(limit for host in readings for limit in host_busy(host.host, host.devices))]
    read.sort(key=lambda limit: -limit.gain)
    return replace(limits, found=(*limits.found, *read))


def limits_of_requests(offered_per_s: float | None, answered_per_s: float, *, is_ours: bool) -> LaunchLimits:
    """Say what limited the requests that a server answered in a second; `offered_per_s` None: all at once."""
    if offered_per_s is not None and answered_per_s >= ANSWERED * offered_per_s:
        answered = units.share(min(1.0, answered_per_s / offered_per_s))
        text = f"{units.rate(offered_per_s, 'requests')} were offered, and {answered} of that answered"
        return LaunchLimits(found=(LaunchLimit(name="requested rate", share=1.0, gain=0.0, text=text),))
    why = "nothing timed how long its device was idle" if is_ours else "the server's host was not read"
    return LaunchLimits(found=(), unknown=f"it answered all that it could, and {why}")


def communication_limit(text: str) -> LaunchLimits:
    """Return the limit of a launch that does nothing but communicate."""
    return LaunchLimits(found=(LaunchLimit(name="communication", share=1.0, gain=0.0, text=text),))


def recorded_limits(launch: Launch) -> Iterator[LaunchLimit]:
    """Yield the limits that a launch's own records show: host, data loading and communication."""
    if launch.slowest.clock != "host" and not launch.case.measures_latency:  # there it waits by design
        yield from _host(launch)
    window = waiting_window(launch)
    waited = 0.0 if window is None else (window.data_wait_s or 0.0) / window.wall_s
    if window is not None and waited > DATA_BOUND:
        who = f" (rank {window.rank})" if launch.world_size > 1 else ""
        text = f"steps waited for data for {units.share(waited)} of the window{who}"
        yield _of_time("data loading", launch, waited, text)
    talked = exposed_s(launch) or sync_difference_s(launch) or 0.0
    if (share := talked / launch.mean_step_s) > COMMUNICATION_BOUND:
        text = f"collectives add {units.share(min(1.0, share))} of a step to it"
        yield _of_time("communication", launch, min(1.0, share), text)


def _host(launch: Launch) -> Iterator[LaunchLimit]:
    """Find a device that waits for its host: between steps, or between the kernels of a step."""
    idle, gap = idle_share(launch), 1 - launch.slowest.steps_s / launch.slowest.wall_s
    if isinstance(idle, Interval) and idle.low > HOST_BOUND:
        yield _of_time("host", launch, idle.centre, f"GPU idle for {idle_text(idle)}", most=idle.high)
    elif gap > HOST_BOUND:
        yield _of_time("host", launch, gap, f"GPU idle between steps for {units.share(gap)} of the window")


def _of_time(
    name: LimitName, launch: Launch, share: float, text: str, *, most: float | None = None
) -> LaunchLimit:
    """Return a limit that took a share of the window, with the most that the rest allows."""
    rest = 1 - (share if most is None else most)
    if rest > 0 and launch.setups:
        rate = units.rate(launch.items_per_s_total / rest, launch.setup.item)
        text += f"; with these kernels and clocks at most about {rate}"
    return LaunchLimit(name=name, share=share, gain=share / max(1 - share, 1e-9), text=text)


def _caps(readings: Sequence[WindowReadings]) -> Iterator[LaunchLimit]:
    """Yield the power cap and the temperature, each of the device that it held longest."""
    devices = [device for host in readings for device in host.devices]
    for name, reasons in CAPS.items():
        held = [(_held(device, reasons), device) for device in devices]
        share, device = max(held, key=lambda item: item[0], default=(0.0, None))
        if device is not None and share >= AT_CAP:
            clock, most = device.clock_sm_mhz, device.clock_sm_max_mhz
            text = ", ".join([*_state(name, device, len(devices)), f"{units.share(share)} of the window"])
            gain = max(0.0, most / clock - 1) if clock and most else 0.0
            yield LaunchLimit(name=name, share=share, gain=gain, text=text)


def _held(device: DeviceWindow, reasons: Sequence[str]) -> float:
    shares = device.throttle_shares or {}
    return min(1.0, sum(shares.get(reason, 0.0) for reason in reasons))


def _state(name: str, device: DeviceWindow, num_devices: int) -> Iterator[str]:
    """Say at which limit a device worked, and how fast."""
    if num_devices > 1:
        yield f"GPU {device.physical_index} of {num_devices}"
    if name == "power cap":
        yield power_limit_text(device)
    elif device.temp_gpu_max_c is not None:
        yield f"up to {device.temp_gpu_max_c:.0f} °C"
    if device.clock_sm_mhz is not None:
        most = device.clock_sm_max_mhz
        yield f"SM clock {device.clock_sm_mhz:,.0f} {'MHz' if most is None else f'of {most:,.0f} MHz'}"


def _host_read(launch: Launch, readings: Sequence[WindowReadings]) -> Iterator[LaunchLimit]:
    """Yield the host where nobody timed how idle the device was, and one CPU was busy while no GPU was."""
    if launch.slowest.clock != "host" and idle_share(launch) is None:
        return  # the device was looked at, and did not wait
    if isinstance(idle_share(launch), Interval):
        return
    for host in readings:
        yield from host_busy(host.host, host.devices)


def host_busy(host: HostWindow, devices: Sequence[DeviceWindow]) -> Iterator[LaunchLimit]:
    """Yield the host as the limit where every GPU said that it idled, or one CPU was busy while no GPU was.

    One that idled all the time was not used, and says nothing of what the work waited for.
    """
    used = [d.util_gpu_percent for d in devices if d.util_gpu_percent is not None]
    idle = min(((d.throttle_shares or {}).get("idle", 0.0) for d in devices), default=0.0)
    core = host.cpu_max_core_percent
    if idle >= UNUSED:
        return
    if idle >= HOST_BOUND:
        yield _host_limit(
            idle, f"each GPU said that it was idle, in {units.share(idle)} of the window or more"
        )
    elif used and core is not None and core >= BUSY_CORE_PERCENT and max(used) < LOW_UTILISATION_PERCENT:
        busy = f"one CPU was busy {units.significant(core)} % of the time"
        yield _host_limit(
            1 - max(used) / 100, f"{busy} while no GPU was over {units.significant(max(used))} %"
        )


def _host_limit(share: float, text: str) -> LaunchLimit:
    return LaunchLimit(name="host", share=share, gain=share / max(1 - share, 1e-9), text=text)


def _ceilings(launch: Launch, peak: Peak | None, memory_peak: BandwidthPeak | None) -> Iterator[LaunchLimit]:
    """Yield the ceiling that the launch came closest to, if it came close."""
    near = [
        (share, name, of)
        for name, (share, least, of) in _shares(launch, peak, memory_peak).items()
        if share >= least
    ]
    for share, name, of in sorted(near, reverse=True)[:1]:
        yield LaunchLimit(
            name=name, share=share, gain=max(0.0, 1 / share - 1), text=f"{units.share(share)} of {of}"
        )


def _shares(
    launch: Launch, peak: Peak | None, memory_peak: BandwidthPeak | None
) -> dict[LimitName, tuple[float, float, str]]:
    """Return the share of each known ceiling, the least that makes it the limit, and what it is of."""
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
    """Say why nothing that was looked at limited the launch."""
    idle, shares = idle_share(launch), _shares(launch, peak, memory_peak)
    if launch.case.measures_latency:
        return "each batch is waited for, so that the device is idle between two of them"
    if launch.slowest.clock == "host":
        return "nothing says how busy the CPU was with this work"
    if isinstance(idle, Unavailable):
        return f"how long the GPU was idle is not known: {idle.reason}"
    if isinstance(idle, Interval) and idle.high > HOST_BOUND:
        return f"the GPU was idle for {idle_text(idle)}, too uncertain to tell whether it waited for its host"
    reached = [f"{units.share(share)} of {of}" for share, _, of in shares.values()]
    lacking = [text for name, text in NOT_KNOWN.items() if name not in shares]
    at = f", at {' and '.join(reached)}" if reached else ""
    return f"the GPU was busy{at}{'; ' if lacking else ''}{', and '.join(lacking)}"


def limit_measure(limits: Sequence[LaunchLimits]) -> Measure:
    """Return what limited a run, from the limits of its launches: what most of them had first.

    It names something, and has no value that could be counted or compared.
    """
    name, times = Counter(one.name for one in limits).most_common(1)[0]
    of = next(one for one in limits if one.name == name)
    if not of.found:
        return _measure(name, of.unknown, {})
    first, all_found = of.found[0], dict.fromkeys(limit.name for one in limits for limit in one.found)
    more = [other for other in all_found if other != name]
    counted = f" ({times} of {len(limits)} launches)" if times < len(limits) else ""
    also = f"; also by {', '.join(ARTICLE.get(other, other) for other in more)}" if more else ""
    return _measure(name, f"{first.text}{counted}{also}", {"share": first.share, "also": more})


def _measure(name: str, detail: str, labels: Mapping[str, Any]) -> Measure:
    missing = detail if name == UNKNOWN else None
    return Measure(
        name=LIMITED_BY, value=None, unit="share", text=name, detail=detail, labels=labels, missing=missing
    )


def limits_together(limits: Sequence[LaunchLimits], measures: Sequence[Measure], noun: str) -> list[Measure]:
    """Return the measure of a run: of its launches' limits, or of those that its points or hosts have."""
    if limits:
        return [limit_measure(limits)]
    parts = [measure for measure in measures if measure.name == LIMITED_BY]
    if noun == "hosts":  # that of all points of a host is its last
        parts = list({part.subject: part for part in parts}.values())
    if len(parts) == 1:
        return [replace(parts[0], case=THE_RUN, subject=WHOLE)]
    return [_limit_of_parts(parts, noun)] if parts else []


def _limit_of_parts(parts: Sequence[Measure], noun: str) -> Measure:
    """Return what limited a run of several points or hosts: what most of them were limited by."""
    names = Counter(part.text for part in parts)
    name, times = names.most_common(1)[0]
    others = [f", {ARTICLE.get(other, other)} at {num}" for other, num in names.items() if other != name]
    detail = f"at {times} of {len(parts)} {noun}{''.join(others)}"
    labels: dict[str, Any] = {"share": times / len(parts)}
    if name == UNKNOWN:
        first = next(part for part in parts if part.text == name)
        labels["why"] = first.labels.get("why", first.detail)
        detail += f": {labels['why']}"
    return _measure(name, detail, labels)


def limit_sentence(limit: Measure | None) -> str:
    """Say what limited a run, as a page has it above its remedy; empty for runs of before."""
    if limit is None:
        return ""
    if limit.missing is not None:
        joined = " " if "why" in limit.labels else ", because "  # of several: "at 3 of 4 points: why"
        return f"limited by: unknown{joined}{limit.missing}"
    return f"limited by {ARTICLE.get(limit.text, limit.text)}: {limit.detail}"
