"""Why was a launch slow or noisy, and how much energy did it use? From its records and readings.

In: a launch and the evidence of its run. Out: what the devices and the host did in its window, the causes
(most severe first), and the energy per item. A cause is only reported if readings show it: a device that does
not report throttle reasons is listed as unknown, not as healthy. Thermal, brake and hardware reasons are
faults; a power cap is a deliberately chosen limit. A missing or broken recording is reported, but does not
affect anything else. What limited a launch is determined in `launches.limits`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final, Literal

from gpuproof.base.groups import grouped
from gpuproof.base.units import seconds, significant
from gpuproof.base.units import share as share_text
from gpuproof.launches.launch import Launch, summarize_launch, throughput
from gpuproof.readings.energy import WHOLE_ENOUGH
from gpuproof.readings.evidence import DeviceWindow, Evidence, HostWindow, MissingReadings, WindowReadings
from gpuproof.readings.limits import power_limit_text
from gpuproof.readings.metric_text import throttle_title
from gpuproof.readings.recording import RecordingData
from gpuproof.records.readings import bare_uuid, named_among
from gpuproof.records.run import Window
from gpuproof.records.what_ran import AT_CAP

SLOWER = 0.02
"""A rank is reported as slower if it is this fraction below the median of its peers."""
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
"""Throttle reasons that have different names in sentences and in tables."""
MIN_SHARE: Final = 0.01
"""A throttle reason that was active for less than this fraction of the window is not mentioned."""
CLOCK_DROP: Final = 0.03
"""Clocks are reported if their mean is this far below the highest clock, and for any fault."""
MIN_COVERAGE: Final = 0.5
"""If readings cover less than this fraction of a window, that is reported; a window without readings has no
coverage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchReadings:
    """Activity of one host, and of the launch's devices on it, during the window."""

    replicate: int
    host: str
    device_names: Mapping[str, str]
    """Physical index (as text) → name of the device."""
    readings: WindowReadings


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchExplanation:
    """A launch with its explanation."""

    replicate: int
    readings: tuple[LaunchReadings, ...]
    sentences: tuple[str, ...]
    """Causes that slowed the launch down, the most severe first, and what could not be read."""
    faults: tuple[str, ...]
    """The sentences that report a fault, such as a device that throttled itself, or an error."""
    energy_j: float | None
    """Energy of all devices of the launch, over the window."""
    energy: EnergyPerItem
    """The energy per item with its method and coverage, or why it is unknown."""
    case_id: str = "main"


def explain_launches(evidence: Evidence) -> tuple[LaunchExplanation, ...]:
    """Explain every monitored launch, from the recordings."""
    launches = (launch for records in evidence.launches if (launch := summarize_launch(records)) is not None)
    return tuple(explain_launch(launch, evidence) for launch in launches if launch.case.monitor is not None)


def explain_launch(launch: Launch, evidence: Evidence) -> LaunchExplanation:
    """Explain a launch using the readings taken during it."""
    readings: list[LaunchReadings] = []
    causes: list[SlowdownCause] = []
    unread: list[str] = []
    for host, windows in grouped((window.host, window) for window in launch.windows).items():
        of_host = evidence.readings(
            launch.case,
            host,
            begin_monotonic_s=min(window.begin_monotonic_s for window in windows),
            end_monotonic_s=max(window.end_monotonic_s for window in windows),
            uuids=_ranks(launch).keys(),
        )
        if isinstance(of_host, MissingReadings):
            unread.append(f"no readings from {host}: {of_host.reason}")
            continue
        read = _readings(launch, host, of_host)
        readings.append(read)
        unread += _unread_devices(launch, host, windows, of_host)
        causes += explain(read.readings, slower_by=_slower_by(launch, of_host))
    energy = _energy(launch, readings)
    per_item_j = energy.energy_j_per_item
    return LaunchExplanation(
        replicate=launch.case.replicate,
        readings=tuple(readings),
        sentences=(*(cause.sentence for cause in causes), *unread),
        faults=tuple(cause.sentence for cause in causes if cause.gravity == "fault"),
        energy_j=None if per_item_j is None else per_item_j * launch.items_total,
        energy=energy,
        case_id=launch.case.case_id,
    )


def _unread_devices(
    launch: Launch, host: str, windows: Sequence[Window], readings: WindowReadings
) -> Iterator[str]:
    """Report how many of the launch's devices on a host could not be read."""
    used = len(windows) if launch.setup.device.kind != "cpu" else 0
    if len(readings.devices) < used:
        yield (
            f"{used - len(readings.devices)} of {used} devices of the launch on {host} were not "
            "read: their clocks, temperatures and errors are not known"
        )


def readings_by_launch(
    explanations: Iterable[LaunchExplanation],
) -> dict[tuple[str, int], list[WindowReadings]]:
    """Return the readings taken during each launch, by case and replicate."""
    return {(of.case_id, of.replicate): [host.readings for host in of.readings] for of in explanations}


def highest_clock_mhz(explanations: Iterable[LaunchExplanation]) -> float | None:
    """Return the highest clock at which any device in the launches may run; None if it was not read."""
    hosts = (host.readings for explanation in explanations for host in explanation.readings)
    clocks = (device.clock_sm_max_mhz for host in hosts for device in host.devices)
    return max((clock for clock in clocks if clock is not None), default=None)


def _readings(launch: Launch, host: str, readings: WindowReadings) -> LaunchReadings:
    # If the CPU is the device under test, being busy does not make it a bottleneck.
    of_host = replace(readings.host, cpu_percent=None) if launch.setup.device.kind == "cpu" else readings.host
    return LaunchReadings(
        replicate=launch.case.replicate,
        host=host,
        device_names={str(device.physical_index): device.name for device in readings.devices},
        readings=replace(readings, host=of_host),
    )


def _ranks(launch: Launch) -> dict[str, int]:
    """Map the permanent identity (in any spelling) of each device used by the launch to its rank."""
    used = ((setup.device.uuid, setup.rank) for setup in launch.setups)
    return {bare_uuid(uuid): rank for uuid, rank in used if uuid is not None}


def used_devices(launch: Launch, recording: RecordingData) -> frozenset[int]:
    """Name the devices used by the launch, by physical index."""
    identities = [track.identity for track in recording.devices]
    places = named_among(_ranks(launch).keys(), [identity.uuid for identity in identities])
    return frozenset(identities[place].physical_index for place in places)


def _slower_by(launch: Launch, readings: WindowReadings) -> dict[int, float]:
    """Name the devices that were slower than the median of all, with the difference."""
    rates = {window.rank: throughput(window.items, window.wall_s) for window in launch.windows}
    middle, ranks = median(rates.values()), _ranks(launch)
    ranks_by_index = {d.physical_index: ranks.get(bare_uuid(d.uuid or "")) for d in readings.devices}
    lags = {index: 1 - rates[rank] / middle for index, rank in ranks_by_index.items() if rank is not None}
    return {index: lag for index, lag in lags.items() if lag > SLOWER}


def _energy(launch: Launch, readings: Sequence[LaunchReadings]) -> EnergyPerItem:
    devices = tuple(device for host in readings for device in host.readings.devices)
    if len(devices) < launch.num_devices:
        sentence = "no energy: not every device of the launch was read"
        return EnergyPerItem(energy_j_per_item=None, sentence=sentence)
    of_all = replace(readings[0].readings, devices=devices)
    return energy_per_item(of_all, items=launch.items_total, item=launch.setup.item)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnergy:
    """The total energy of all launches of a run."""

    energy_j: float | None
    """Total energy in joules; None if the energy of any launch is unknown."""
    text: str
    """Spread over the launches, method and coverage; or which launch has unknown energy."""


def energy_of_run(
    explanations: Sequence[LaunchExplanation], *, num_launches: int, item: str
) -> RunEnergy | None:
    """Add up the energies of the launches; None if no launch has an energy value."""
    measured = [explanation for explanation in explanations if explanation.energy_j is not None]
    if not measured:
        return None
    if len(measured) < num_launches:
        unknown = next((explanation for explanation in explanations if explanation.energy_j is None), None)
        why = f": launch {unknown.replicate + 1}: {unknown.energy.sentence}" if unknown else ""
        return RunEnergy(energy_j=None, text=f"known for {len(measured)} of {num_launches} launches{why}")
    text = measured[0].energy.sentence if num_launches == 1 else _over_launches(measured, item)
    return RunEnergy(energy_j=sum(explanation.energy_j or 0.0 for explanation in measured), text=text)


def _over_launches(measured: Sequence[LaunchExplanation], item: str) -> str:
    per_item = [explanation.energy.energy_j_per_item or 0.0 for explanation in measured]
    bases = " or ".join(dict.fromkeys(explanation.energy.basis for explanation in measured))
    lowest = min(explanation.energy.coverage or 0.0 for explanation in measured)
    span = f"{significant(min(per_item))} to {significant(max(per_item))} J/{item} each"
    return (
        f"all {len(measured)} launches, {span}, over {measured[0].energy.num_devices} GPU(s), from "
        f"{bases}, which cover at least {share_text(lowest)} of each window"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowdownCause:
    """A cause in one sentence, with its severity and its device (None means the host)."""

    gravity: Gravity
    physical_index: int | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyPerItem:
    """Energy per item, summed over all devices."""

    energy_j_per_item: float | None
    sentence: str
    """The value with its method and coverage, or why there is none."""
    num_devices: int = 0
    basis: str = ""
    coverage: float | None = None
    """Fraction of the window with energy data, for the device with the lowest coverage."""


def explain(
    readings: WindowReadings, *, slower_by: Mapping[int, float] | None = None
) -> tuple[SlowdownCause, ...]:
    """Report what slowed the devices down in a window, most severe first, then by device.

    `slower_by` is how much slower a device was than its peers (0.18 for 18 %), if known; it is shown before
    the reason. An empty result means that everything was read and nothing was found.
    """
    has_samples = readings.coverage is None or readings.coverage.num_samples > 0
    causes: list[SlowdownCause] = []
    for device in readings.devices:
        lag = (slower_by or {}).get(device.physical_index)
        causes += _device_causes(device, lag, has_samples=has_samples)
    causes += [
        SlowdownCause(gravity="host", physical_index=None, sentence=sentence)
        for sentence in _host_sentences(readings.host)
    ]
    causes += _coverage_causes(readings)

    def place(cause: SlowdownCause) -> tuple[int, int]:
        last = len(readings.devices)
        return _ORDER.index(cause.gravity), last if cause.physical_index is None else cause.physical_index

    return tuple(sorted(causes, key=place))


def energy_per_item(readings: WindowReadings, *, items: int, item: str) -> EnergyPerItem:
    """Divide the energy of all devices in the window by its number of items (joules per item).

    Energy that covers only part of the window is scaled up if its coverage is at least 90 %, and rejected
    otherwise, because the part without readings may differ.

    Raises:
        ValueError: the number of items is not positive.
    """
    if items <= 0:
        raise ValueError(f"energy per item needs a positive number of items, not {items}")
    if not readings.devices:
        return EnergyPerItem(energy_j_per_item=None, sentence="no energy: no device was read")
    total_j = 0.0
    for device in readings.devices:
        scaled = _whole_energy(device)
        if isinstance(scaled, str):
            reason = f"no energy: GPU {device.physical_index}: {scaled}"
            return EnergyPerItem(energy_j_per_item=None, sentence=reason)
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
    """Return the energy in the whole window in joules, or why it is unknown."""
    if device.is_divided:
        return "in MIG mode, its energy includes that of all its instances"
    if device.energy_j is None or not device.energy_coverage:
        return device.energy_missing or "neither an energy counter nor power readings"
    if device.energy_coverage < WHOLE_ENOUGH:
        return f"its energy is known for only {share_text(device.energy_coverage)} of the window"
    return device.energy_j / device.energy_coverage


def _device_causes(
    device: DeviceWindow, slower_by: float | None, *, has_samples: bool
) -> Iterator[SlowdownCause]:
    index = device.physical_index
    for event in device.events:
        yield SlowdownCause(gravity="fault", physical_index=index, sentence=f"GPU {index}: {event}")
    shares = device.throttle_shares
    if shares is not None:
        yield from _reasons(device, shares, "fault", slower_by)
        yield from _reasons(device, shares, "limit", slower_by)
    elif has_samples:  # otherwise reported once, for the whole window
        yield SlowdownCause(
            gravity="unknown",
            physical_index=index,
            sentence=f"GPU {index}: does not report throttle reasons, so whether it was throttled is unknown",
        )


def _reasons(
    device: DeviceWindow,
    shares: Mapping[str, float],
    gravity: Gravity,
    slower_by: float | None,
) -> Iterator[SlowdownCause]:
    """Join all reasons of one severity into a sentence, longest first; omit a cap that had no effect."""
    held = sorted(
        (
            (shares[reason], _TITLES.get(reason) or throttle_title(reason))
            for reason in _REASONS[gravity]
            if shares.get(reason, 0.0) >= MIN_SHARE
            and not (reason == "power_cap" and shares[reason] >= AT_CAP)
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


def _coverage_causes(readings: WindowReadings) -> Iterator[SlowdownCause]:
    """Report missing readings, since silence would suggest that no problem was found."""
    coverage = readings.coverage
    if coverage is None or (coverage.num_samples and coverage.share >= MIN_COVERAGE):
        return
    sentence = "there are no readings in the window"
    if coverage.num_samples:
        sentence = f"the readings cover only {share_text(coverage.share)} of the window"
    last_s = coverage.last_sample_s
    if last_s is not None:
        when = "after the window started" if last_s >= 0 else "before it"
        sentence += f": the sampler was killed; its last reading came {seconds(abs(last_s))} {when}"
    yield SlowdownCause(gravity="unknown", physical_index=None, sentence=sentence)


def _host_sentences(host: HostWindow) -> Iterator[str]:
    if host.cpu_percent is not None and host.cpu_percent >= 95:
        yield f"host CPU was saturated: {significant(host.cpu_percent)} % busy over the window"
    if host.cpu_iowait_percent is not None and host.cpu_iowait_percent >= 10:
        yield f"the host waited for its disks for {significant(host.cpu_iowait_percent)} % of CPU time"
    if host.swap_growth_bytes is not None and host.swap_growth_bytes > 0:
        yield f"the host swapped: {significant(host.swap_growth_bytes / 2**20)} MiB more at the end"
