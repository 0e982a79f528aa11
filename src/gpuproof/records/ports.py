"""Port counters: InfiniBand, RoCE and Ethernet ports; PCIe links of GPUs and network cards.

The catalogue (`ports.csv`) has one row per counter: its width, its behaviour at its maximum, its kind, the
ports on which it is not maintained, and the source of this information. A `PortTotals` record contains the
running totals of every port at one point in time; `readings/ports.py` computes the increases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from gpuproof.base.files import packaged_rows
from gpuproof.base.units import count
from gpuproof.records.journal import record_kind

Medium = Literal["rdma", "ethernet", "pcie", "gpu"]
"""`rdma` includes InfiniBand, RoCE and similar; `gpu` means GPU links, counted by the GPU's own driver."""
CounterKind = Literal["error", "resent", "misordered", "drop", "congestion", "sent", "received", "traffic"]
TRAFFIC: Final[tuple[CounterKind, ...]] = ("sent", "received", "traffic")
CAUSES: Final[tuple[CounterKind, ...]] = ("error", "resent", "misordered")
"""Counters that can explain slow or lost traffic on a port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortCounter:
    """Properties of one counter."""

    name: str
    medium: Medium
    kind: CounterKind
    meaning: str
    source: str
    bits: str | None = None
    at_top: Literal["wraps", "saturates"] | None = None
    """Behaviour at the maximum; None if it is not documented."""
    silent: str | None = None
    """Traits of ports on which this counter always stays at 0."""

    @property
    def top(self) -> int | None:
        """The maximum value; None if the width is not documented."""
        return None if self.bits is None else 2 ** int(self.bits) - 1

    def is_silent_on(self, port: PortReading) -> bool:
        """Return whether the counter is not maintained on a port, so that a 0 proves nothing."""
        return any(trait in (self.silent or "").split(";") for trait in port.traits)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortReading:
    """One port at one point in time."""

    name: str
    """Name of the port: `mlx5_0:1`, `eth0`, a PCI address, or the UUID of a GPU."""
    medium: Medium
    traits: tuple[str, ...] = ()
    """Traits of the port: `InfiniBand`, `RoCE`, `virtual function`, `virtual` (paravirtual card), `member of
    bond0`."""
    address: str | None = None
    """Where the port's card is located, which stays the same if the port is renamed."""
    state: str | None = None
    rate: str | None = None
    """Rate as the kernel shows it, including the width: `400 Gb/sec (4X NDR)`, `32.0 GT/s PCIe x16`."""
    counters: dict[str, int] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    """Counters that exist but could not be read: name → reason."""

    def without_traffic(self) -> dict[str, int]:
        """Return the port's counters, except those that count traffic."""
        traffic = of_kind(self.medium, self.counters, *TRAFFIC)
        return {name: total for name, total in self.counters.items() if name not in traffic}


PORT_COUNTERS: Final[Mapping[tuple[str, str], PortCounter]] = {
    (row["medium"], row["name"]): PortCounter(**row) for row in packaged_rows("records/ports.csv")
}
"""The ports, ordered by medium and name."""


def of_kind(medium: Medium, names: Iterable[str], *kinds: CounterKind) -> list[str]:
    """Return a medium's counters of these kinds; a counter from a newer version has no kind."""
    rows = ((name, PORT_COUNTERS.get((medium, name))) for name in names)
    return [name for name, row in rows if row is not None and row.kind in kinds]


def growth_text(grown: Mapping[str, int]) -> str:
    """Format the increases of counters.

    >>> growth_text({"symbol_error": 1200, "link_downed": 1})
    'symbol_error +1,200, link_downed +1'
    """
    return ", ".join(f"{name} +{count(number)}" for name, number in grown.items())


@record_kind("ports")
@dataclass(frozen=True, slots=True, kw_only=True)
class PortTotals:
    """All ports of a host: at a recording's start and end, and when more than traffic has changed."""

    monotonic_s: float
    at: str
    """When the counters were read: `start`, `end`, or `change`."""
    ports: tuple[PortReading, ...]
    missing: dict[str, str]
    """Medium → why it was not read."""
