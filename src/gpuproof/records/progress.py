"""How far a rank's device had come when the rank failed: what tells who is waited for from who waits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCall:
    """A collective operation that a rank has asked for, as torch's flight recorder has it."""

    number: int
    """Counting the operations of the default group from 1: alike on all ranks."""
    operation: str
    """As torch calls it: gloo:all_reduce, nccl:broadcast."""
    sizes: tuple[tuple[int, ...], ...]
    """Shapes of its inputs."""
    state: str | None
    """scheduled, started or completed on the device; a backend of processors leaves it at scheduled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProgress:
    """What the device has reached, not what the host asked for, and the last operations over all ranks."""

    launched: int | None = None
    """Timed steps or operations that the host has given to the device."""
    begun: int | None = None
    """Of them, those that the device has begun with …"""
    completed: int | None = None
    """… and those that it has done. None where nothing is timed yet, or the device did not answer."""
    operation: str | None = None
    """The operation that is timed, where collectives are measured."""
    collectives: int | None = None
    """Operations of the default group that this rank has asked for, by torch's own count."""
    calls: tuple[CollectiveCall, ...] = ()
    """The last of them."""
    ras: str | None = None
    """What NCCL's own service (RAS) says of its communicators, where it is there."""
    missing: str | None = None
    """Why something is not known."""
