"""Why was a launch slow or noisy, and what energy did it take? Its records joined to its readings.

In: a launch and the evidence of its run. Out: for each launch
what devices and host did in its window, and sentences about it. A recording that is missing or broken
is said, and takes nothing else with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from gpuproof.base.groups import grouped
from gpuproof.base.units import share, significant
from gpuproof.launches.explain import EnergyPerItem, SlowdownCause, energy_per_item, explain
from gpuproof.launches.launch import Launch, summarize_launch, throughput
from gpuproof.readings.evidence import Evidence, MissingReadings
from gpuproof.readings.recording import RecordingData
from gpuproof.readings.window_readings import WindowReadings
from gpuproof.records.readings import bare_uuid, named_among
from gpuproof.records.run import Window

SLOWER = 0.02
"""A rank this share below its peers' median is said to be slower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchReadings:
    """What one host and the devices that a launch used did during its window."""

    replicate: int
    host: str
    device_names: Mapping[str, str]
    """Physical index (as text) → name."""
    readings: WindowReadings


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchExplanation:
    """One launch explained."""

    replicate: int
    readings: tuple[LaunchReadings, ...]
    sentences: tuple[str, ...]
    """What held the launch back, the gravest first; what could not be read, too."""
    faults: tuple[str, ...]
    """Those of the sentences that tell of a fault: a device that slowed itself down, an error."""
    energy_j: float | None
    """Of all devices of the launch, over the window."""
    energy: EnergyPerItem
    """That of one item with its method and coverage, or why it is not known."""
    case_id: str = "main"


def explain_launches(evidence: Evidence) -> tuple[LaunchExplanation, ...]:
    """Explain every launch that was read beside, from the recordings."""
    launches = (launch for records in evidence.launches if (launch := summarize_launch(records)) is not None)
    return tuple(explain_launch(launch, evidence) for launch in launches if launch.case.monitor is not None)


def explain_launch(launch: Launch, evidence: Evidence) -> LaunchExplanation:
    """Explain a launch from what was read beside it."""
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
            unread.append(f"no readings of {host}: {of_host.reason}")
            continue
        read = _readings(launch, host, of_host)
        readings.append(read)
        unread += _unread_devices(launch, host, windows, of_host)
        causes += explain(read.readings, slower_by=_slower_by(launch, of_host))
    energy = _energy(launch, readings)
    per_item = energy.energy_j_per_item
    return LaunchExplanation(
        replicate=launch.case.replicate,
        readings=tuple(readings),
        sentences=(*(cause.sentence for cause in causes), *unread),
        faults=tuple(cause.sentence for cause in causes if cause.gravity == "fault"),
        energy_j=None if per_item is None else per_item * launch.items_total,
        energy=energy,
        case_id=launch.case.case_id,
    )


def _unread_devices(
    launch: Launch, host: str, windows: Sequence[Window], readings: WindowReadings
) -> Iterator[str]:
    """Say how many devices of the launch on a host are not among those that were read."""
    used = len(windows) if launch.setup.device.kind != "cpu" else 0
    if len(readings.devices) < used:
        yield (
            f"{used - len(readings.devices)} of {used} devices of the launch on {host} were not read: "
            "their clocks, heat and errors are not known"
        )


def readings_by_launch(
    explanations: Iterable[LaunchExplanation],
) -> dict[tuple[str, int], list[WindowReadings]]:
    """Return what was read beside each launch, by its case and replicate."""
    return {(of.case_id, of.replicate): [host.readings for host in of.readings] for of in explanations}


def highest_clock_mhz(explanations: Iterable[LaunchExplanation]) -> float | None:
    """Return the highest clock that any device of the launches may run at; None where it was not read."""
    devices = (
        device
        for explanation in explanations
        for host in explanation.readings
        for device in host.readings.devices
    )
    clocks = (device.clock_sm_max_mhz for device in devices)
    return max((clock for clock in clocks if clock is not None), default=None)


def _readings(launch: Launch, host: str, readings: WindowReadings) -> LaunchReadings:
    # Where the processor is the device, that it is busy says nothing of a bottleneck.
    of_host = replace(readings.host, cpu_percent=None) if launch.setup.device.kind == "cpu" else readings.host
    return LaunchReadings(
        replicate=launch.case.replicate,
        host=host,
        device_names={str(device.physical_index): device.name for device in readings.devices},
        readings=replace(readings, host=of_host),
    )


def _ranks(launch: Launch) -> dict[str, int]:
    """Map the permanent identity of each device that the launch used to its rank, however it is spelt."""
    used = ((setup.device.uuid, setup.rank) for setup in launch.setups)
    return {bare_uuid(uuid): rank for uuid, rank in used if uuid is not None}


def used_devices(launch: Launch, recording: RecordingData) -> frozenset[int]:
    """Name the devices that the launch used by their physical index."""
    identities = [track.identity for track in recording.devices]
    places = named_among(_ranks(launch).keys(), [identity.uuid for identity in identities])
    return frozenset(identities[place].physical_index for place in places)


def _slower_by(launch: Launch, readings: WindowReadings) -> dict[int, float]:
    """Name the devices that were slower than the median of all, and by what share."""
    rates = {window.rank: throughput(window.items, window.wall_s) for window in launch.windows}
    middle, ranks = median(rates.values()), _ranks(launch)
    ranks_by_index = {d.physical_index: ranks.get(bare_uuid(d.uuid or "")) for d in readings.devices}
    lags = {index: 1 - rates[rank] / middle for index, rank in ranks_by_index.items() if rank is not None}
    return {index: lag for index, lag in lags.items() if lag > SLOWER}


def _energy(launch: Launch, readings: Sequence[LaunchReadings]) -> EnergyPerItem:
    devices = tuple(device for host in readings for device in host.readings.devices)
    if len(devices) < launch.num_devices:
        unread = "no energy: not every device of the launch was read"
        return EnergyPerItem(energy_j_per_item=None, sentence=unread)
    joined = replace(readings[0].readings, devices=devices)
    return energy_per_item(joined, items=launch.items_total, item=launch.setup.item)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnergy:
    """The energy of all launches of a run together."""

    energy_j: float | None
    """None where that of a launch is not known."""
    text: str
    """How far launches differ, by which method, how well covered; or of which launch it is not known."""


def energy_of_run(
    explanations: Sequence[LaunchExplanation], *, num_launches: int, item: str
) -> RunEnergy | None:
    """Add the launches' energies up; None where that of none is known."""
    measured = [explanation for explanation in explanations if explanation.energy_j is not None]
    if not measured:
        return None
    if len(measured) < num_launches:
        untold = [explanation for explanation in explanations if explanation.energy_j is None]
        why = f": launch {untold[0].replicate + 1}: {untold[0].energy.sentence}" if untold else ""
        return RunEnergy(energy_j=None, text=f"known of {len(measured)} of {num_launches} launches{why}")
    text = measured[0].energy.sentence if num_launches == 1 else _over_launches(measured, item)
    return RunEnergy(energy_j=sum(explanation.energy_j or 0.0 for explanation in measured), text=text)


def _over_launches(measured: Sequence[LaunchExplanation], item: str) -> str:
    per_item = [explanation.energy.energy_j_per_item or 0.0 for explanation in measured]
    bases = " or ".join(dict.fromkeys(explanation.energy.basis for explanation in measured))
    lowest = min(explanation.energy.coverage or 0.0 for explanation in measured)
    span = f"{significant(min(per_item))} to {significant(max(per_item))} J/{item} each"
    return (
        f"all {len(measured)} launches, {span}, over {measured[0].energy.num_devices} GPU(s), from {bases}, "
        f"which cover {share(lowest)} of a window or more"
    )
