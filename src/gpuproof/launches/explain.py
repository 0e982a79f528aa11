"""Why was a case slow or noisy? Sentences from what the devices and the host did during its window.

In: plain readings of one measured window, as `readings` cuts them out of a recording. Out: causes, the
gravest first, and the energy that an item took. A cause is named only of what was read: a device that
tells no throttle reasons is named as unknown, not as sound. Thermal, brake and hardware reasons are
faults; a power cap is a limit that somebody chose. What limited a launch is decided in `limits`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from gpuproof.base.units import seconds, significant
from gpuproof.base.units import share as share_text
from gpuproof.readings.energy import WHOLE_ENOUGH
from gpuproof.readings.limits import power_limit_text
from gpuproof.readings.metric_text import throttle_title
from gpuproof.readings.window_readings import DeviceWindow, HostWindow, WindowReadings
from gpuproof.records.what_ran import AT_CAP

Gravity = Literal["fault", "limit", "host", "unknown"]
_ORDER: Final[tuple[Gravity, ...]] = ("fault", "limit", "host", "unknown")

_REASONS: Final[Mapping[Gravity, tuple[str, ...]]] = {
    "fault": (
        *("thermal", "thermal_software", "thermal_hardware", "thermal_memory", "hardware_slowdown"),
        *("power_brake", "current_limit", "voltage_regulator"),
    ),
    "limit": ("power_cap", "sync_boost", "board_limit", "reliability", "other"),
}
_TITLES: Final = {"voltage_regulator": "voltage-regulator limit", "other": "an unnamed throttle reason"}
"""Those that a sentence calls otherwise than a table does."""

MIN_SHARE: Final = 0.01
"""A reason that held for less of the window than this is not worth a sentence."""
CLOCK_DROP: Final = 0.03
"""Clocks are named where the mean lies this far under the highest, and for every fault."""
MIN_COVERAGE: Final = 0.5
"""Of a window of which less was read it is said how little; a window with no reading in it has none."""
BUSY_CPU_PERCENT: Final = 95.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowdownCause:
    """One sentence, how grave it is, and the device that it is about (None: the host)."""

    gravity: Gravity
    physical_index: int | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyPerItem:
    """Energy of all devices together for one item."""

    energy_j_per_item: float | None
    sentence: str
    """The figure with its method and coverage, or why there is none."""
    num_devices: int = 0
    basis: str = ""
    coverage: float | None = None
    """The share of the window for which it is known, of the device of which least is."""


def explain(
    readings: WindowReadings, *, slower_by: Mapping[int, float] | None = None
) -> tuple[SlowdownCause, ...]:
    """Say what held the devices back in a window, the gravest first, then by device.

    `slower_by` is how much slower a device was than its peers (0.18 for 18 %), where that is known; it
    stands before the reason. An empty answer means that everything was read and nothing was found.
    """
    lag, coverage = slower_by or {}, readings.coverage
    causes = [
        cause
        for device in readings.devices
        for cause in _device_causes(
            device, lag.get(device.physical_index), has_samples=coverage is None or coverage.num_samples > 0
        )
    ]
    causes += [*_host_causes(readings), *_coverage_causes(readings)]
    place = len(readings.devices)
    return tuple(
        sorted(
            causes,
            key=lambda f: (
                _ORDER.index(f.gravity),
                place if f.physical_index is None else f.physical_index,
            ),
        )
    )


def energy_per_item(readings: WindowReadings, *, items: int, item: str) -> EnergyPerItem:
    """Divide the energy of all devices in the window by its items, in joules an item.

    An energy that covers part of the window is scaled by its coverage when that is 90 % or more, and
    refused below: the unseen rest may differ.

    Raises:
        ValueError: the count of items is not above 0.
    """
    if items <= 0:
        raise ValueError(f"energy per item needs items, not {items}")
    if not readings.devices:
        return EnergyPerItem(energy_j_per_item=None, sentence="no energy: no device was read")
    total_j = 0.0
    for device in readings.devices:
        scaled = _whole_energy(device)
        if isinstance(scaled, str):
            return EnergyPerItem(
                energy_j_per_item=None, sentence=f"no energy: GPU {device.physical_index}: {scaled}"
            )
        total_j += scaled
    methods = {device.energy_method for device in readings.devices}
    basis = "energy counters" if methods == {"counter"} else "power integrated over time"
    if len(methods) > 1:
        basis = "energy counters on some devices and integrated power on the others"
    lowest = min(device.energy_coverage or 0.0 for device in readings.devices)
    per_item = total_j / items
    return EnergyPerItem(
        energy_j_per_item=per_item,
        sentence=f"{significant(per_item)} J/{item} over {len(readings.devices)} GPU(s), "
        f"from {basis}, which cover {share_text(lowest)} of the window",
        num_devices=len(readings.devices),
        basis=basis,
        coverage=lowest,
    )


def _whole_energy(device: DeviceWindow) -> float | str:
    """Give the energy of the whole window in joules, or why there is none."""
    if device.is_divided:
        return "in MIG mode, its energy is that of all its instances"
    if device.energy_j is None or not device.energy_coverage:
        return device.energy_missing or "neither an energy counter nor power readings"
    if device.energy_coverage < WHOLE_ENOUGH:
        return f"its energy is known for {share_text(device.energy_coverage)} of the window only"
    return device.energy_j / device.energy_coverage


def _device_causes(
    device: DeviceWindow, slower_by: float | None, *, has_samples: bool
) -> Iterator[SlowdownCause]:
    index = device.physical_index
    for event in device.events:
        yield SlowdownCause(gravity="fault", physical_index=index, sentence=f"GPU {index}: {event}")
    shares = device.throttle_shares
    if shares is None and not has_samples:
        return  # said once, of the window
    if shares is None:
        yield SlowdownCause(
            gravity="unknown",
            physical_index=index,
            sentence=f"GPU {index}: reports no throttle reasons, so whether it was throttled is unknown",
        )
        return
    yield from _reasons(device, shares, "fault", slower_by)
    yield from _reasons(device, shares, "limit", slower_by)


def _reasons(
    device: DeviceWindow,
    shares: Mapping[str, float],
    gravity: Gravity,
    slower_by: float | None,
) -> Iterator[SlowdownCause]:
    """Join all reasons of one gravity into one sentence, the longest first."""
    held = sorted(
        (
            (shares[reason], _TITLES.get(reason) or throttle_title(reason))
            for reason in _REASONS[gravity]
            if shares.get(reason, 0.0) >= MIN_SHARE and not _is_the_limit(reason, shares)
        ),
        reverse=True,
    )
    if not held:
        return
    lag = "" if slower_by is None else f"−{significant(slower_by * 100, 2)} %: "
    parts = ", ".join(f"{title} in {share_text(share)}" for share, title in held)
    details = [f"{parts} of the window", *_clock(device, gravity)]
    if gravity == "limit" and MIN_SHARE <= shares.get("power_cap", 0.0) < AT_CAP:
        details.append(power_limit_text(device))
    if gravity == "fault" and device.temp_gpu_max_c is not None:
        details.append(f"up to {device.temp_gpu_max_c:.0f} °C")
    yield SlowdownCause(
        gravity=gravity,
        physical_index=device.physical_index,
        sentence=f"GPU {device.physical_index}: {lag}{'; '.join(details)}",
    )


def _clock(device: DeviceWindow, gravity: Gravity) -> Iterator[str]:
    mean, highest = device.clock_sm_mhz, device.clock_sm_max_mhz
    if mean is None or highest is None:
        return
    if gravity == "fault" or mean < highest * (1 - CLOCK_DROP):
        yield f"SM clock {highest:,.0f} → {mean:,.0f} MHz"


def _is_the_limit(reason: str, shares: Mapping[str, float]) -> bool:
    """Say whether a power cap held for so long that it is what limited the launch (`analysis.limits`)."""
    return reason == "power_cap" and shares[reason] >= AT_CAP


def _coverage_causes(readings: WindowReadings) -> Iterator[SlowdownCause]:
    """Say where nothing can be said: silence would read as if nothing had been found."""
    coverage = readings.coverage
    if coverage is None or (coverage.num_samples and coverage.share >= MIN_COVERAGE):
        return
    sentence = "no reading lies in the window"
    if coverage.num_samples:
        sentence = f"the readings cover {share_text(coverage.share)} of the window only"
    last_s = coverage.last_sample_s
    if last_s is not None:
        when = "after the window began" if last_s >= 0 else "before it"
        sentence += f": the sampler was killed, its last reading came {seconds(abs(last_s))} {when}"
    yield SlowdownCause(gravity="unknown", physical_index=None, sentence=sentence)


def _host_causes(readings: WindowReadings) -> Iterator[SlowdownCause]:
    for sentence in _host_sentences(readings.host):
        yield SlowdownCause(gravity="host", physical_index=None, sentence=sentence)


def _host_sentences(host: HostWindow) -> Iterator[str]:
    if host.cpu_percent is not None and host.cpu_percent >= BUSY_CPU_PERCENT:
        yield f"host CPU was saturated: {significant(host.cpu_percent)} % busy over the window"
    if host.cpu_iowait_percent is not None and host.cpu_iowait_percent >= 10:
        yield f"the host waited for its disks in {significant(host.cpu_iowait_percent)} % of CPU time"
    if host.swap_growth_bytes is not None and host.swap_growth_bytes > 0:
        yield f"the host swapped: {significant(host.swap_growth_bytes / 2**20)} MiB more at the end"
