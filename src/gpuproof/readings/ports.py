"""What did each port count during a launch? Increases between readings of a recording, or why none is known.

A total that went back was reset, by the driver or by whoever clears counters, or started again at its top:
the latter is taken where the counter is known to wrap, went back by more than half its range, and its link
did not go down in between. One that saturates stays at its top; what it counted is then the least it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from gpuproof.base.units import count
from gpuproof.readings.recording import RecordingData
from gpuproof.records.collected import CaseRecords
from gpuproof.records.ports import PORT_COUNTERS, CounterKind, PortCounter, PortReading, PortTotals, of_kind
from gpuproof.records.readings import Counters
from gpuproof.records.run import Start

if TYPE_CHECKING:  # which keeps what is read here
    from gpuproof.readings.evidence import Evidence, MissingReadings

FLAPS: Final = ("link_downed", "carrier_changes")
CUT_SHORT: Final = "its ports were not read at the end: the recording was cut short"


@dataclass(frozen=True, slots=True, kw_only=True)
class PortChange:
    """What a port counted between the first and the last reading of it."""

    port: PortReading
    """As it was last read."""
    increases: Mapping[str, int]
    missing: Mapping[str, str]
    """Counter, or `port` → why what it counted is not known, or may be more."""
    became: str = ""
    """States and rates in turn, where they changed; PCIe changes its speed at rest, which says nothing."""

    def counters(self, *kinds: CounterKind) -> list[str]:
        """Name its counters of some kinds, those included of which nothing is known."""
        return of_kind(self.port.medium, {**self.increases, **self.missing}, *kinds)

    def grown(self, *kinds: CounterKind) -> dict[str, int]:
        """Return what counters of some kinds gained, of those that did."""
        return {name: n for name in self.counters(*kinds) if (n := self.increases.get(name))}

    def total(self, *kinds: CounterKind) -> int | None:
        """Add up what the counters of some kinds gained; None where one is not known, or there is none."""
        gained = [self.increases.get(name) for name in self.counters(*kinds)]
        return None if None in gained or not gained else sum(filter(None, gained))


@dataclass(frozen=True, slots=True, kw_only=True)
class PortsDuringLaunch:
    """What the ports of one host counted during one launch."""

    launch: str
    """CASE/REPLICATE."""
    hosts: tuple[str, ...]
    """All hosts of the launch."""
    changes: tuple[PortChange, ...] = ()
    missing: Mapping[str, str]
    """Medium → why nothing of it is known; `ports`: of all of them, or not to the end."""

    def unknown(self, *media: str) -> list[str]:
        """Say why what these media counted is not known, or not to the end."""
        return [self.missing[medium] for medium in ("ports", *media) if medium in self.missing]


def ports_in(evidence: Evidence) -> dict[str, list[PortsDuringLaunch]]:
    """Return what the ports of each host counted during each launch, by the name of the inventory."""
    by_host: dict[str, list[PortsDuringLaunch]] = {}
    for launch in evidence.launches:
        names = {start.host: launch.host_of(start) for start in launch.of(Start)}
        for own_name, host in names.items() if launch.case.monitor is not None else ():
            totals = evidence.port_totals(launch.case, own_name)
            if totals:  # a recording of an older version has none
                by_host.setdefault(host, []).append(_during(launch, totals, tuple(names.values())))
    return by_host


def _during(
    launch: CaseRecords, totals: tuple[PortTotals, ...] | MissingReadings, hosts: tuple[str, ...]
) -> PortsDuringLaunch:
    name = f"{launch.case.case_id}/{launch.case.replicate}"
    if not isinstance(totals, tuple):
        return PortsDuringLaunch(launch=name, hosts=hosts, missing={"ports": totals.reason})
    cut = {} if len(totals) > 1 and totals[-1].at == "end" else {"ports": CUT_SHORT}
    missing = {**totals[-1].missing, **cut}
    return PortsDuringLaunch(launch=name, hosts=hosts, changes=port_changes(totals), missing=missing)


def ports_and_gpus(recording: RecordingData) -> tuple[PortTotals, ...]:
    """Return what ports had counted, and at both ends what drivers of GPUs reported of their links."""
    ends = [one for one in recording.counters if one.at == "end"]
    begins = [one for one in recording.counters if one not in ends]  # a driver may answer later than others
    first, last = _gpus(recording, begins[::-1]), _gpus(recording, ends)
    return tuple(
        replace(one, ports=(*one.ports, *(last if one.at == "end" else first))) for one in recording.ports
    )


def _gpus(recording: RecordingData, counters: Sequence[Counters]) -> list[PortReading]:
    """Return the links of each GPU as if they were a port; of several readings of it the last counts."""
    totals = {key: values for one in counters for key, values in one.devices.items() if values}
    return [
        PortReading(
            name=gpu.uuid or f"GPU {gpu.physical_index}",
            medium="gpu",
            counters={name: int(total) for name, total in of_gpu.items() if ("gpu", name) in PORT_COUNTERS},
        )
        for gpu in (track.identity for track in recording.devices)
        for of_gpu in [totals.get(str(gpu.physical_index), {})]
    ]


def port_changes(totals: Sequence[PortTotals]) -> tuple[PortChange, ...]:
    """Return what each port that was ever listed counted from the first reading, of several, to the last."""
    if not totals:
        return ()
    listed = [{port.name: port for port in reading.ports} for reading in totals]
    names = sorted(dict.fromkeys(name for reading in listed for name in reading))
    return tuple(_change([reading.get(name) for reading in listed], totals[-1].ports) for name in names)


def _change(readings: Sequence[PortReading | None], last: Sequence[PortReading]) -> PortChange:
    ports = [port for port in readings if port is not None]
    if len(ports) < len(readings):
        known = {port.name for port in last if port.address == ports[-1].address}
        renamed = f": its card has {', '.join(sorted(known))}" if known - {ports[-1].name} else ""
        missing = {"port": f"it was not listed all the time, removed or renamed{renamed}"}
        return PortChange(port=ports[-1], increases={}, missing=missing)
    increases, missing = {}, dict(ports[-1].unread)
    for name in dict.fromkeys(name for port in ports for name in port.counters):
        row = PORT_COUNTERS.get((ports[0].medium, name))
        try:
            increases[name] = sum(_increases(name, ports, row))
        except ValueError as error:
            missing[name] = str(error)
        if row is not None and row.at_top == "saturates" and ports[-1].counters.get(name) == row.top:
            missing.setdefault(name, f"it is at its top, {count(row.top)}, and may have counted more")
    links = dict.fromkeys(f"{port.state} {port.rate}" for port in ports if port.medium != "pcie")
    became = " → ".join(links) if len(links) > 1 else ""
    return PortChange(port=ports[-1], increases=increases, missing=missing, became=became)


def _increases(name: str, ports: Sequence[PortReading], row: PortCounter | None) -> Iterator[int]:
    """Yield what a counter gained between readings.

    Raises:
        ValueError: that is not known; says why.
    """
    top = None if row is None else row.top
    totals = [port.counters.get(name) for port in ports]
    if row is not None and row.at_top == "saturates" and totals[0] == top:
        raise ValueError(
            f"it stood at its top, {count(top or 0)}, from the beginning: clear it (perfquery -R)"
        )
    for (port, later), (before, after) in zip(pairwise(ports), pairwise(totals), strict=True):
        if before is None or after is None:
            raise ValueError("it was not read at both ends")
        step = after - before
        if step < 0 and top is not None and row is not None and row.at_top == "wraps":
            flapped = any(later.counters.get(f, 0) != port.counters.get(f, 0) for f in FLAPS)
            step += 0 if flapped or -step <= top // 2 else top + 1
        if step < 0:
            raise ValueError(f"it went back from {count(before)} to {count(after)}: somebody reset it")
        yield step
