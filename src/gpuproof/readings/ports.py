"""Increases of each port's counters during a launch, or why they are unknown.

A total that decreased was either reset (by the driver or by someone clearing counters) or wrapped around. It
counts as wrapped if the counter is known to wrap, decreased by more than half its range, and its link did not
go down in between. A saturating counter stays at its maximum; its increase is then a lower bound.
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

if TYPE_CHECKING:  # Evidence caches the result
    from gpuproof.readings.evidence import Evidence, MissingReadings

FLAPS: Final = ("link_downed", "carrier_changes")
CUT_SHORT: Final = "its ports were not read at the end: the recording was truncated"


@dataclass(frozen=True, slots=True, kw_only=True)
class PortChange:
    """Counter increases of a port between its first and last reading."""

    port: PortReading
    """The port as last read."""
    increases: Mapping[str, int]
    missing: Mapping[str, str]
    """Counter, or `port` → why its count is unknown, or may be too low."""
    became: str = ""
    """States and rates in order, if they changed; not for PCIe, because its speed changes when idle."""

    def counters(self, *kinds: CounterKind) -> list[str]:
        """Return the names of the port's counters of the given kinds, including any with unknown counts."""
        return of_kind(self.port.medium, {**self.increases, **self.missing}, *kinds)

    def grown(self, *kinds: CounterKind) -> dict[str, int]:
        """Return the increases of the counters of these kinds that increased."""
        return {name: n for name in self.counters(*kinds) if (n := self.increases.get(name))}

    def total(self, *kinds: CounterKind) -> int | None:
        """Sum the increases of counters of the given kinds; None if one is unknown, or there are none."""
        gained = [self.increases.get(name) for name in self.counters(*kinds)]
        return None if None in gained or not gained else sum(filter(None, gained))


@dataclass(frozen=True, slots=True, kw_only=True)
class PortsDuringLaunch:
    """Increases in the counters of one host's ports during one launch."""

    launch: str
    """CASE/REPLICATE."""
    hosts: tuple[str, ...]
    """All hosts of the launch."""
    changes: tuple[PortChange, ...] = ()
    missing: Mapping[str, str]
    """Medium → why no data is available for it. The key `ports` is used for all media, or for counts that
    stop before the end."""

    def unknown(self, *media: str) -> list[str]:
        """Return why the counts of these media are unknown, or incomplete at the end."""
        return [self.missing[medium] for medium in ("ports", *media) if medium in self.missing]


def ports_in(evidence: Evidence) -> dict[str, list[PortsDuringLaunch]]:
    """Return the port counts of each host during each launch, by inventory name."""
    by_host: dict[str, list[PortsDuringLaunch]] = {}
    for launch in evidence.launches:
        names = {start.host: launch.host_of(start) for start in launch.of(Start)}
        for own_name, host in names.items() if launch.case.monitor is not None else ():
            totals = evidence.port_totals(launch.case, own_name)
            if totals:  # a recording from an older version has no ports
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
    """Return port counts, and the GPU drivers' link counters at the start and end."""
    ends = [one for one in recording.counters if one.at == "end"]
    begins = [one for one in recording.counters if one not in ends]  # a driver may respond later than others
    first, last = _gpus(recording, begins[::-1]), _gpus(recording, ends)
    return tuple(
        replace(one, ports=(*one.ports, *(last if one.at == "end" else first))) for one in recording.ports
    )


def _gpus(recording: RecordingData, counters: Sequence[Counters]) -> list[PortReading]:
    """Return the links of each GPU as ports; the last of several readings counts."""
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
    """Return the counter increases of every port ever listed, from the first reading to the last."""
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
        missing = {"port": f"it was not listed throughout: removed or renamed{renamed}"}
        return PortChange(port=ports[-1], increases={}, missing=missing)
    increases, missing = {}, dict(ports[-1].unread)
    for name in dict.fromkeys(name for port in ports for name in port.counters):
        row = PORT_COUNTERS.get((ports[0].medium, name))
        try:
            increases[name] = sum(_increases(name, ports, row))
        except ValueError as error:
            missing[name] = str(error)
        if row is not None and row.at_top == "saturates" and ports[-1].counters.get(name) == row.top:
            missing.setdefault(name, f"it is at its maximum, {count(row.top)}, and may have counted more")
    links = dict.fromkeys(f"{port.state} {port.rate}" for port in ports if port.medium != "pcie")
    became = " → ".join(links) if len(links) > 1 else ""
    return PortChange(port=ports[-1], increases=increases, missing=missing, became=became)


def _increases(name: str, ports: Sequence[PortReading], row: PortCounter | None) -> Iterator[int]:
    """Yield a counter's increases between readings.

    Raises:
        ValueError: an increase is unknown; the message contains the reason.
    """
    top = None if row is None else row.top
    totals = [port.counters.get(name) for port in ports]
    if row is not None and row.at_top == "saturates" and totals[0] == top:
        raise ValueError(f"it was at its maximum, {count(top or 0)}, from the start: clear it (perfquery -R)")
    for (port, later), (before, after) in zip(pairwise(ports), pairwise(totals), strict=True):
        if before is None or after is None:
            raise ValueError("it was not read at both ends")
        step = after - before
        if step < 0 and top is not None and row is not None and row.at_top == "wraps":
            flapped = any(later.counters.get(f, 0) != port.counters.get(f, 0) for f in FLAPS)
            step += 0 if flapped or -step <= top // 2 else top + 1
        if step < 0:
            raise ValueError(f"it went backwards from {count(before)} to {count(after)}: it was reset")
        yield step
