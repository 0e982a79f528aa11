"""What a probe found, in one record for all probes.

A quantity, of what, and either the time of each repeat with what was done in it, or a value, or the reason
why there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuproof.records.journal import record_kind
from gpuproof.records.run import Device

LAUNCH_LATENCY, CACHE_BANDWIDTH = "kernel launch latency", "cache bandwidth"
COSTS = (LAUNCH_LATENCY, CACHE_BANDWIDTH)
"""Measured after passes over memory; no verdict goes by them."""


@record_kind("probe")
@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFigure:
    """One figure of one rank: of a probe, or of a check of what a workload computed."""

    rank: int
    quantity: str
    """As the measure is called: link bandwidth, wrong values, fingerprint, …"""
    unit: str
    labels: Mapping[str, Any] = field(default_factory=dict)
    amount: float | None = None
    """What one repeat did: bytes, of a bandwidth. None where time itself is the quantity."""
    durations_s: tuple[float, ...] = ()
    """Of each repeat, in order."""
    value: float | None = None
    """Where no time was taken."""
    missing: str | None = None
    """Why there is neither: what applies to nothing here, or could not be done."""
    is_inapplicable: bool = False
    """The reason is evidence that there is nothing to measure here."""
    evidence: tuple[str, ...] = ()
    """What else was seen: addresses of wrong words, how a cache was avoided, against what was compared."""
    is_of_host: bool = False
    """Of the rank's host, and not of its device."""
    device: Device | None = None
    """Of which device, where that is not the rank's own."""
    source: Device | None = None
    """Of a link: where it begins; None is the host."""
    target: Device | None = None
    """Of a link: where it ends; None is the host."""

    @property
    def is_of_link(self) -> bool:
        """Whether it is of the way between two places."""
        return self.source is not None or self.target is not None
