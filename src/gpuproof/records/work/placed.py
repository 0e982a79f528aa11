"""Where a launch really ran: `placed.json` beside its spec."""

from __future__ import annotations

from dataclasses import dataclass

from gpuproof.records.codec import Host, Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where a launch really ran."""

    hosts: tuple[Host, ...]
    """In the order of node ranks; this machine by its own name, others by the inventory's."""
    ranks_per_host: Positive
    address: str | None = None
    """Where the ranks met, and at which port; None where one rank is alone."""
    port: int | None = None
    beside: tuple[tuple[str, int], ...] = ()
    """Launches that ran on the same hosts when it began."""
