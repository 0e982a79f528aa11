"""What ports counted: InfiniBand, RoCE and Ethernet ports, and the PCIe links of GPUs and network cards.

The catalogue (`ports.csv`) has a row a counter: its width, what it does at its top, of what kind it is, on
which ports nobody maintains it, and the source of all that. A record of `PortTotals` holds the running totals
of every port at one moment; `readings/ports.py` says what they gained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from gpuproof.base.files import packaged_rows
from gpuproof.base.units import count
from gpuproof.records.journal import record_kind

Medium = Literal["rdma", "ethernet", "pcie", "gpu"]
"""InfiniBand, RoCE and their like are `rdma`; links of a GPU that its own driver counts are `gpu`."""
CounterKind = Literal["error", "resent", "misordered", "drop", "congestion", "sent", "received", "traffic"]
TRAFFIC: Final[tuple[CounterKind, ...]] = ("sent", "received", "traffic")
CAUSES: Final[tuple[CounterKind, ...]] = ("error", "resent", "misordered")
"""What explains something slow or lost over the port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortCounter:
    """What is known of one counter."""

    name: str
    medium: Medium
    kind: CounterKind
    meaning: str
    source: str
    bits: str | None = None
    at_top: Literal["wraps", "saturates"] | None = None
    """None where neither is documented."""
    silent: str | None = None
    """Traits of ports on which it stays at 0 whatever happens."""

    @property
    def top(self) -> int | None:
        """Its highest value; None where its width is not documented."""
        return None if self.bits is None else 2 ** int(self.bits) - 1

    def is_silent_on(self, port: PortReading) -> bool:
        """Say whether nobody maintains it on a port, so that 0 there is no evidence."""
        return any(trait in (self.silent or "").split(";") for trait in port.traits)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortReading:
    """One port at one moment."""

    name: str
    """`mlx5_0:1`, `eth0`, a PCI address, or the UUID of a GPU."""
    medium: Medium
    traits: tuple[str, ...] = ()
    """`InfiniBand`, `RoCE`, `virtual function`, `virtual` (paravirtual card), `member of bond0`."""
    address: str | None = None
    """Where its card is: what stays the same when the port is renamed."""
    state: str | None = None
    rate: str | None = None
    """As the kernel writes it, with the width: `400 Gb/sec (4X NDR)`, `32.0 GT/s PCIe x16`."""
    counters: dict[str, int] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    """Counters that are there and could not be read: name → reason."""

    def without_traffic(self) -> dict[str, int]:
        """Return its counters but for those that grow all the time."""
        traffic = of_kind(self.medium, self.counters, *TRAFFIC)
        return {name: total for name, total in self.counters.items() if name not in traffic}


PORT_COUNTERS: Final[Mapping[tuple[str, str], PortCounter]] = {
    (row["medium"], row["name"]): PortCounter(**row) for row in packaged_rows("records/ports.csv")
}
"""By medium and name."""


def of_kind(medium: Medium, names: Iterable[str], *kinds: CounterKind) -> list[str]:
    """Return those counters of a medium that are of these kinds; one of a newer version is of none."""
    rows = ((name, PORT_COUNTERS.get((medium, name))) for name in names)
    return [name for name, row in rows if row is not None and row.kind in kinds]


def growth_text(grown: Mapping[str, int]) -> str:
    """Write what counters gained.

    >>> growth_text({"symbol_error": 1200, "link_downed": 1})
    'symbol_error +1,200, link_downed +1'
    """
    return ", ".join(f"{name} +{count(number)}" for name, number in grown.items())


@record_kind("ports")
@dataclass(frozen=True, slots=True, kw_only=True)
class PortTotals:
    """All ports of a host at one moment: at both ends of the recording, and whenever one counted an error."""

    monotonic_s: float
    at: str
    """`start`, `end`, or `change`."""
    ports: tuple[PortReading, ...]
    missing: dict[str, str]
    """Medium → why none of it was read."""
