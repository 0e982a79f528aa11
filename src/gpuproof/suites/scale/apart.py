"""What was found of each point beyond its throughput: communication, phases, memory, how step times lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuproof.launches.communication import StepCommunication, communication_of
from gpuproof.launches.launch import Launch
from gpuproof.launches.phases import PhaseFigures, phases_of
from gpuproof.records.memory import Memory, MemoryParts
from gpuproof.suites.scale.alike import Alikeness, alikeness_of
from gpuproof.suites.scale.plan import Law, ScalePoint

NUM_QUANTILES = 101
WAYS = (
    ("sync_difference", "communication: step with gradient average less step without"),
    ("exposed", "communication: collectives beside which nothing is computed"),
    ("overlapped", "communication: collectives beside computing"),
    ("standalone", "communication: all-reduces of the buckets by themselves"),
)
"""Each measure of communication by its field, and what it is of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryHeld:
    """The memory of the rank that holds most: worked out from sizes, and as it was measured. In bytes."""

    estimate: MemoryParts
    counted: MemoryParts | None
    """Of the tensors themselves."""
    activations_bytes: int | None
    activations_missing: str | None
    peak_bytes: int | None
    """The allocator's peak in the window; None where the device has no such count."""
    device_bytes: int | None = None
    """Of the rank's device; None where it is not known."""

    @property
    def expected_bytes(self) -> int:
        """All parts, those activations that are known with them."""
        return self.estimate.total_bytes + (self.activations_bytes or 0)

    @property
    def device_share(self) -> float | None:
        """What is expected, or was measured where that is more, over what the device has."""
        if not self.device_bytes:
            return None
        return max(self.expected_bytes, self.peak_bytes or 0) / self.device_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PointApart:
    """One point, taken apart."""

    case_id: str
    batch_size: int
    num_devices: int
    law: Law | None
    communication: StepCommunication
    phases: PhaseFigures | None
    phases_missing: str | None
    memory: MemoryHeld | None
    step_quantiles_s: tuple[float, ...]
    """Of the step times of all launches: the least, each per cent, the longest; empty without any."""
    alike: Alikeness | None = None
    """Whether several devices learn what one does."""
    alike_missing: str | None = None


def take_apart(point: ScalePoint, launches: Sequence[Launch]) -> PointApart:
    """Return what the launches of a point say."""
    phases, alike = phases_of(launches), alikeness_of(launches)
    return PointApart(
        case_id=point.case_id,
        batch_size=point.batch_size,
        num_devices=point.num_devices,
        law=point.law,
        communication=communication_of(launches),
        phases=None if isinstance(phases, str) else phases,
        phases_missing=phases if isinstance(phases, str) else None,
        memory=_memory(launches),
        step_quantiles_s=_quantiles(launches),
        alike=alike if isinstance(alike, Alikeness) else None,
        alike_missing=alike if isinstance(alike, str) else None,
    )


def _memory(launches: Sequence[Launch]) -> MemoryHeld | None:
    held = [
        MemoryHeld(
            estimate=memory.estimate,
            counted=memory.counted,
            activations_bytes=memory.activations_bytes,
            activations_missing=memory.activations_missing,
            peak_bytes=_peak(launch, memory),
            device_bytes=_device_bytes(launch, memory),
        )
        for launch in launches
        for memory in launch.memory
    ]
    return max(held, key=lambda one: (one.peak_bytes or 0, one.expected_bytes), default=None)


def _peak(launch: Launch, memory: Memory) -> int | None:
    return next(window.peak_allocated_bytes for window in launch.windows if window.rank == memory.rank)


def _device_bytes(launch: Launch, memory: Memory) -> int | None:
    return next(setup.device.memory_total_bytes for setup in launch.setups if setup.rank == memory.rank)


def _quantiles(launches: Sequence[Launch]) -> tuple[float, ...]:
    times = [time_s for launch in launches for time_s in launch.step_times_s]
    return tuple(map(float, np.quantile(times, np.linspace(0, 1, NUM_QUANTILES)))) if times else ()
