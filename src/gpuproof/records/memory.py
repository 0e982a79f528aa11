"""The record of a rank's memory: what the closed form says, and what was counted and measured."""

from __future__ import annotations

from dataclasses import dataclass

from gpuproof.records.journal import record_kind


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryParts:
    """Bytes that one rank holds, by what they are for."""

    parameters_bytes: int
    """In float32 in every precision: parameters are their own master weights."""
    gradients_bytes: int
    optimizer_bytes: int
    communication_bytes: int | None = None
    """Gathered parameters, or the buckets of gradients; None where it is not counted."""

    @property
    def total_bytes(self) -> int:
        """All parts together."""
        return (
            self.parameters_bytes
            + self.gradients_bytes
            + self.optimizer_bytes
            + (self.communication_bytes or 0)
        )


@record_kind("memory")
@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """One rank's memory: estimated from sizes alone, and counted in the first step of the warm-up."""

    rank: int
    estimate: MemoryParts
    counted: MemoryParts | None
    activations_bytes: int | None
    """Kept for the backward pass of one micro-batch, each storage once, without parameters and samples.

    Under autocast it has the half-precision copies of the weights in it."""
    activations_missing: str | None
    """Why they are None."""
    device_used_bytes: int | None
    """On the whole device, by all processes, just after the window."""
    device_used_missing: str | None
