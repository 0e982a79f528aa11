"""What a report says of memory: the estimate by parts, and what was measured against it.

In: launches. Out: the largest rank's estimated bytes and a sentence; None where no launch looked.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuproof import units
from gpuproof.analysis.launch import Launch
from gpuproof.records.memory import Memory


def memory_estimate(launches: Sequence[Launch]) -> tuple[int, str] | None:
    """Say what memory the launches were estimated to take, and what they took, on the largest rank."""
    if not launches or not launches[0].memory:
        return None
    launch = launches[0]
    largest = max(launch.memory, key=_estimated_bytes)
    measured = _measured(launch, largest)
    return _estimated_bytes(largest), f"estimated for a rank: {_parts(largest)}; {measured}"


def _estimated_bytes(memory: Memory) -> int:
    return memory.estimate.total_bytes + (memory.activations_bytes or 0)


def _parts(memory: Memory) -> str:
    estimate = memory.estimate
    parts = {
        "parameters": estimate.parameters_bytes,
        "gradients": estimate.gradients_bytes,
        "optimizer": estimate.optimizer_bytes,
        "communication": estimate.communication_bytes,
        "activations": memory.activations_bytes,
    }
    said = [f"{name} {units.memory(value)}" for name, value in parts.items() if value]
    if memory.activations_bytes is None:
        said.append(f"activations not known: {memory.activations_missing}")
    return ", ".join(said)


def _measured(launch: Launch, memory: Memory) -> str:
    window = next(window for window in launch.windows if window.rank == memory.rank)
    if window.peak_allocated_bytes is not None:
        return (
            f"measured peak allocated {units.memory(window.peak_allocated_bytes)}, "
            f"reserved {units.memory(window.peak_reserved_bytes)}, "
            f"on the device by all {units.memory(memory.device_used_bytes)}"
        )
    if memory.counted is None:
        return "nothing was counted"
    total = units.memory(memory.counted.total_bytes)
    return f"counted in tensors {total}, activations and communication apart"
