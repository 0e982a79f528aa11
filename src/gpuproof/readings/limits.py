"""Bottlenecks of the workload that the readings reveal: a cap, the temperature, or the host.

The input is the readings of a window, or of a whole recording. The output is `LaunchLimits`, largest gain
first, and the measure and sentence stored in a result. `launches.limits` adds what the workload itself
recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from gpuproof.base import units
from gpuproof.readings.evidence import DeviceWindow, HostWindow, WindowReadings
from gpuproof.records.result import LIMITED_BY, Measure
from gpuproof.records.what_ran import AT_CAP

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
UNKNOWN: Final = "unknown"
HOST_BOUND = 0.10
"""Fraction of the window that a device must be idle for its host to be the limit: the lower end of its
interval, or the gaps between steps that were timed on the device."""
UNUSED = 0.99
"""Fraction of the window for which a GPU must report being idle to count as idle."""
BUSY_CORE_PERCENT: Final = 98.0
LOW_UTILISATION_PERCENT: Final = 80.0
CAPS: Final[Mapping[LimitName, tuple[str, ...]]] = {
    "power cap": ("power_cap",),
    "temperature": ("thermal", "thermal_software", "thermal_hardware", "thermal_memory"),
}
"""The throttle reasons that belong to each limit."""
ARTICLE: Final[Mapping[str, str]] = {name: f"the {name}" for name in ("host", "power cap", "requested rate")}
"""Names as used in a sentence; reasons not listed here are used unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchLimit:
    """One thing that limited a launch."""

    name: LimitName
    share: float
    """Fraction of the window in which the limit applied, 0 to 1; for a ceiling, the fraction reached."""
    gain: float
    """Maximum relative gain in the rate if this limit were removed."""
    text: str
    """The measured result as text, e.g. "GPU idle 68 % of the window"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchLimits:
    """The limits of a launch or a run, largest gain first."""

    found: tuple[LaunchLimit, ...]
    unknown: str = ""
    """Why no limit was found."""

    @property
    def name(self) -> str:
        """The name of the first limit, or the label for an unknown one."""
        return self.found[0].name if self.found else UNKNOWN


def limits_of_readings(readings: WindowReadings) -> LaunchLimits:
    """Report the limits of a command for which only readings are available."""
    unknown = "its readings show no cap or waiting for the host" if readings.devices else "no GPU was read"
    return with_readings(LaunchLimits(found=(), unknown=unknown), [readings])


def with_readings(limits: LaunchLimits, readings: Sequence[WindowReadings]) -> LaunchLimits:
    """Return the limits that the workload itself recorded, followed by those found in its readings."""
    read = [
        *caps_read(readings),
        *(limit for host in readings for limit in host_busy(host.host, host.devices)),
    ]
    read.sort(key=lambda limit: -limit.gain)
    return replace(limits, found=(*limits.found, *read))


def caps_read(readings: Sequence[WindowReadings]) -> Iterator[LaunchLimit]:
    """Yield the power cap and the temperature, each for the device that it limited longest."""
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
    """Describe the limit that a device ran under, and its speed."""
    if num_devices > 1:
        yield f"GPU {device.physical_index} of {num_devices}"
    if name == "power cap":
        yield power_limit_text(device)
    elif device.temp_gpu_max_c is not None:
        yield f"up to {device.temp_gpu_max_c:.0f} °C"
    if device.clock_sm_mhz is not None:
        most = device.clock_sm_max_mhz
        yield f"SM clock {device.clock_sm_mhz:,.0f} {'MHz' if most is None else f'of {most:,.0f} MHz'}"


def power_limit_text(device: DeviceWindow) -> str:
    """Describe the power limit that a device ran under, and whether it is the default."""
    limit, shipped = device.power_limit_w, device.power_limit_default_w
    if limit is None:
        return "its limit was not read"
    if shipped is None:
        return f"{limit:,.0f} W (default unknown)"
    if limit == shipped:
        return f"{limit:,.0f} W (the default)"
    return f"{limit:,.0f} W ({'below' if limit < shipped else 'above'} the default of {shipped:,.0f} W)"


def host_busy(host: HostWindow, devices: Sequence[DeviceWindow]) -> Iterator[LaunchLimit]:
    """Yield the host as the limit if every GPU reported idling, or a CPU was busy while no GPU was.

    A GPU that was idle throughout was not used, so it does not show what the workload waited for.
    """
    used = [d.util_gpu_percent for d in devices if d.util_gpu_percent is not None]
    idle = min(((d.throttle_shares or {}).get("idle", 0.0) for d in devices), default=0.0)
    core = host.cpu_max_core_percent
    if idle >= UNUSED:
        return
    if idle >= HOST_BOUND:
        yield _host_limit(idle, f"each GPU reported idling for at least {units.share(idle)} of the window")
    elif used and core is not None and core >= BUSY_CORE_PERCENT and max(used) < LOW_UTILISATION_PERCENT:
        busy = f"one CPU was busy {units.significant(core)} % of the time"
        yield _host_limit(1 - max(used) / 100, f"{busy} with no GPU above {units.significant(max(used))} %")


def _host_limit(share: float, text: str) -> LaunchLimit:
    return LaunchLimit(name="host", share=share, gain=share / max(1 - share, 1e-9), text=text)


def limit_measure(limits: Sequence[LaunchLimits]) -> Measure:
    """Return what limited a run: the most frequent first limit among its launches.

    The measure has text, but no value that could be counted or compared.
    """
    name, times = Counter(one.name for one in limits).most_common(1)[0]
    of = next(one for one in limits if one.name == name)
    if not of.found:
        return measure_of_limit(name, of.unknown, {})
    first, all_found = of.found[0], dict.fromkeys(limit.name for one in limits for limit in one.found)
    more = [other for other in all_found if other != name]
    counted = f" ({times} of {len(limits)} launches)" if times < len(limits) else ""
    also = f"; also by {', '.join(ARTICLE.get(other, other) for other in more)}" if more else ""
    return measure_of_limit(name, f"{first.text}{counted}{also}", {"share": first.share, "also": more})


def measure_of_limit(name: str, detail: str, labels: Mapping[str, Any]) -> Measure:
    """Return the measure for a limit; if it is unknown, `detail` is the reason."""
    missing = detail if name == UNKNOWN else None
    return Measure(
        name=LIMITED_BY, value=None, unit="share", text=name, detail=detail, labels=labels, missing=missing
    )


def limit_sentence(limit: Measure | None) -> str:
    """Return what limited a run, as shown on a page above its remedy; empty for older runs."""
    if limit is None:
        return ""
    if limit.missing is not None:
        joined = " " if "why" in limit.labels else ", because "  # for several points: "at 3 of 4 points: why"
        return f"limited by: unknown{joined}{limit.missing}"
    return f"limited by {ARTICLE.get(limit.text, limit.text)}: {limit.detail}"
