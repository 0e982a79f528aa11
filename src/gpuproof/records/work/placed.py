"""Where a launch really ran (`placed.json` beside its spec), and which device it was given among others."""

from __future__ import annotations

from dataclasses import dataclass

from gpuproof.records.codec import Host, Positive
from gpuproof.records.journal import record_kind


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceShare:
    """How a case's device is found where it starts: the one with the most free memory that is not taken."""

    cases_at_once: int = 1
    """Cases of this run that run on the host at the same time; each device has one before any has two."""
    min_free_bytes: int | None = None
    """Free memory that the device must have, beside what other cases have yet to take; None asks for none."""
    wait_s: float = 300.0
    """How long to wait for memory that no case of this run holds; the case fails then."""


@record_kind("device_taken")
@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTaken:
    """The device that a case was given, and what was known of it then."""

    rank: int
    physical_index: int
    framework_index: int | None
    name: str
    uuid: str | None
    free_bytes: int | None
    """None where the driver does not say."""
    cases_per_device: int
    """Cases of this run that it may have at the same time."""
    beside: int
    """Those that it had already."""
    waited_s: float
    monotonic_s: float
