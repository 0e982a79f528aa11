"""What a report says of a fleet: a row a host, the types of GPU, and the whole."""

from __future__ import annotations

from dataclasses import dataclass

from gpuproof.analysis.fleet import FleetSummary
from gpuproof.analysis.validity import Validity


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRow:
    """One host of the fleet."""

    host: str
    gpu_type: str | None
    """None where nothing was measured and the inventory does not say."""
    num_devices: int | None
    num_launches: int
    num_planned: int
    items_per_s_total: float | None
    items_per_s_per_device: float | None
    energy_j_per_item: float | None
    cost_per_million_items: float | None
    validity: Validity | None
    stage: str | None
    """Where it failed: setup, deploy, execute, download, parse or exception; None where it did not."""
    failure: str | None
    sentences: tuple[str, ...]
    """What stood out in the readings beside its launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReport:
    """Host by host, and together."""

    item: str
    currency: str
    hosts: tuple[HostRow, ...]
    """In the order of the inventory."""
    summary: FleetSummary
