"""How far a rank's device got before the rank failed, to tell culprits from waiting ranks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCall:
    """A collective operation requested by a rank, as recorded by torch's flight recorder."""

    number: int
    """Number of the operation in the default group, from 1; all ranks use the same numbers."""
    operation: str
    """The operation's name in torch: gloo:all_reduce, nccl:broadcast."""
    sizes: tuple[tuple[int, ...], ...]
    """Shapes of the operation's inputs."""
    state: str | None
    """State on the device: scheduled, started or completed; with a CPU backend, it stays at scheduled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProgress:
    """Progress of the device, not of the host's requests; last operations over all ranks."""

    launched: int | None = None
    """Timed steps or operations that the host has queued on the device."""
    begun: int | None = None
    """How many of these the device has started …"""
    completed: int | None = None
    """… and how many it has completed. None if nothing is timed yet, or if the device did not respond."""
    operation: str | None = None
    """The timed operation, if collectives are measured."""
    collectives: int | None = None
    """Number of default-group operations requested by this rank, by torch's own count."""
    calls: tuple[CollectiveCall, ...] = ()
    """The last operations that this rank requested in the default group."""
    ras: str | None = None
    """Report of NCCL's own RAS service about its communicators, if available."""
    missing: str | None = None
    """Why something is unknown."""
