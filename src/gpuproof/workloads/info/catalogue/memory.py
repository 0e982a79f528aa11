"""Passes over memory as a workload, in the two STREAM patterns that bound all other patterns.

Bytes are counted as in STREAM: each buffer is read or written once per pass. A CPU may read a cache line
before writing it; this is not counted (https://www.cs.virginia.edu/stream/ref.html). A sample is one pass, so
`data.batch_size` is the number of passes per step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuproof.records.work.device_sizes import AUTO, Auto, DeviceSizes
from gpuproof.records.work.options import Bytes
from gpuproof.workloads.info.base import InputShape, Work, WorkloadInfo, require_positive

Pattern = Literal["copy", "triad"]
BUFFERS: dict[Pattern, int] = {"copy": 2, "triad": 3}
"""a = b moves two buffers per pass; a = b + s·c moves three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """The pattern, and the size of each buffer, which far exceeds the last-level cache (with `auto`)."""

    pattern: Pattern = "triad"
    buffer_bytes: Bytes | Auto = 2**29

    def __post_init__(self) -> None:
        require_positive(self)
        if self.buffer_bytes != AUTO and self.buffer_bytes % 4:
            raise ValueError(f"buffer_bytes is {self.buffer_bytes}, but must be a multiple of 4")


def memory_bytes(pattern: Pattern, buffer_bytes: int) -> int:
    """Return the number of bytes that one pass moves.

    >>> memory_bytes("copy", 1000), memory_bytes("triad", 1000)
    (2000, 3000)
    """
    return BUFFERS[pattern] * buffer_bytes


def _input_shape(_options: MemoryOptions, _image_size: int | None, _num_classes: int | None) -> InputShape:
    return InputShape(kind="features", shape=(1,), num_targets=1)


def _work(_options: MemoryOptions, _shape: InputShape) -> Work:
    return Work(num_parameters=0, forward_flops=0, training_flops=0)


def _fitted(options: MemoryOptions, sizes: DeviceSizes) -> dict[str, int]:
    return {"buffer_bytes": sizes.buffer_bytes} if options.buffer_bytes == AUTO else {}


def _bytes_per_step(options: MemoryOptions, _shape: InputShape, batch_size: int) -> float:
    assert options.buffer_bytes != AUTO  # a number has been filled in before a rank builds the workload
    return float(batch_size * memory_bytes(options.pattern, options.buffer_bytes))


MEMORY = WorkloadInfo(
    name="memory",
    summary="passes over buffers of 4-byte numbers: copy, or triad",
    item="passes",
    options_type=MemoryOptions,
    input_shape=_input_shape,
    work=_work,
    fitted=_fitted,
    implementation="gpuproof.workloads.torch.memory_pass:build_memory",
    loss="mean_squared_error",
    bytes_per_step=_bytes_per_step,
    kinds=("inference",),
    without_effect=(("training.precision", "memory moves 4-byte numbers in every precision"),),
)
