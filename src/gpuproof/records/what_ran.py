"""Records of what actually ran: step options, kernels, compilation, memory, connections.

`Effective` is written between warm-up and window, `Compilation` after the window; `StepOptions` is part of
the setup. Flags are set in the case; these records show their effect. For a rank's memory, the analytical
estimate is stored along with the counted and measured values. For its TCP connections, the kernel's counters
are stored, which show retransmissions of packets that were lost on a link.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from gpuproof.records.codec import Natural
from gpuproof.records.journal import record_kind
from gpuproof.records.work.training import Checkpointing, OptimizerImplementation

Operation = Literal["matrix product", "convolution", "attention"]
Layout = Literal["NHWC", "NCHW", "either", "other"]
Tf32Switch = Literal["on", "off", "mixed"]
AT_POWER_CAP = "at the power cap"
"""Suffix of a worker's stop reason if a window was extended because of the power cap."""
AT_CAP: Final = 0.5
"""A power or thermal cap limits a launch if active for at least this fraction of the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """The options a step was actually built with, read back from torch if possible; None if N/A."""

    optimizer: str | None
    optimizer_implementation: OptimizerImplementation | None
    activation_checkpointing: Checkpointing | None
    checkpointed_modules: int
    """Modules that are recomputed in the backward pass."""
    cuda_graphs: bool
    """Whether the whole step is one captured graph that is replayed, or one graph per bucket."""
    deterministic: bool
    tf32: Tf32Switch | None
    """Whether CUDA may use TF32 in fp32; None on a CPU, which does not support it. torch has one switch for
    matmuls and one for convolutions: `mixed` means that only one of them is on."""
    linear_layers: int
    fp8_linear_layers: int
    """Number of linear layers that multiply in fp8, out of all linear layers."""
    graph_ends: tuple[int, ...] = ()
    """The positions up to which attention reads, if decoding has one graph or compiled step per bucket."""
    weights: str | None = None
    """The types in which weights are stored; None without weights, and in older runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedWork:
    """Operations of one kind and precision in one step, as torch passed them to its kernels."""

    operation: Operation
    dtype: str
    """The type of the operands: `bfloat16`, or `float8_e5m2 × float8_e4m3fn` if they differ."""
    layout: Layout | None
    """The memory layout of a convolution's input; `either` if its sizes fit both. None for anything other
    than an image."""
    flops: float
    calls: int


@record_kind("effective")
@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """Inputs of one step's kernels, observed in a separate step between warm-up and window."""

    rank: int
    work: tuple[ObservedWork, ...]
    uncounted: tuple[str, ...]
    """Matmuls, convolutions and attention without a FLOPs formula; no fraction includes them."""
    missing: str | None
    """Why nothing could be observed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphBreak:
    """A graph break: the compiler gave up, fell back to Python, and started a new graph."""

    reason: str
    times: int


@record_kind("compilation")
@dataclass(frozen=True, slots=True, kw_only=True)
class Compilation:
    """torch.compile statistics for the model, from process start to the end of the window."""

    rank: int
    mode: str
    num_graphs: int
    graph_breaks: tuple[GraphBreak, ...]
    eager_frames: int
    """Number of functions that should have been compiled but run uncompiled."""
    cuda_graph_skips: int
    """Number of times that a mode with CUDA graphs ran without a graph."""
    compiled_in_window: int
    """Number of graphs compiled, or given up on, within the measured window."""


def share_of_flops(
    effective: Effective, fits: Callable[[ObservedWork], bool], *, images: bool = False
) -> float:
    """Return the fraction of observed FLOPs that match; with `images`, only convolutions count.

    The fraction is 0 if there are no such FLOPs.
    """
    considered = [work for work in effective.work if not images or work.operation == "convolution"]
    total = sum(work.flops for work in considered)
    return sum(work.flops for work in considered if fits(work)) / total if total else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCap:
    """A rank's observations of its device's power cap."""

    share: float | None
    """Fraction of the window spent at the cap, 0 to 1; None if the driver does not report it."""
    settled_after_s: float | None
    """How long steps ran before the window until the cap had settled; None if the cap was not reached."""
    needed_s: float
    missing: str | None
    first_clock_mhz: float | None = None
    """The clock just after steps started to settle; the next field is the power at that time."""
    first_power_w: float | None = None
    period_s: float | None = None
    """Period of the power-cap controller; None if none was observed, and in older runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedConnection:
    """One or more connections between the same two addresses; counts start when they open."""

    local: str
    """The local address."""
    peer: str
    """The remote address."""
    segments_sent: Natural
    """Segments that carry data, including retransmissions."""
    segments_sent_again: Natural


@record_kind("connections")
@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """A rank's connections to other processes, by address, after its measurement."""

    rank: int
    connections: tuple[CountedConnection, ...]
    missing: str | None
    """Why the connections are unknown; None if the list is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryParts:
    """Memory used by one rank in bytes, by purpose."""

    parameters_bytes: int
    """Size in float32 for every precision, because parameters are their own master weights."""
    gradients_bytes: int
    optimizer_bytes: int
    communication_bytes: int | None = None
    """Size of gathered parameters, or of gradient buckets; None if not counted."""

    @property
    def total_bytes(self) -> int:
        """Total of all parts."""
        return (
            self.parameters_bytes
            + self.gradients_bytes
            + self.optimizer_bytes
            + (self.communication_bytes or 0)
        )


@record_kind("memory")
@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """One rank's memory, as estimated from sizes alone and as counted in the first warm-up step."""

    rank: int
    estimate: MemoryParts
    counted: MemoryParts | None
    activations_bytes: int | None
    """Size of the tensors that one micro-batch saves for the backward pass, counting each storage once,
    without parameters and samples.

    Under autocast, this includes the half-precision copies of the weights."""
    activations_missing: str | None
    """Why `activations_bytes` is None; without a warm-up step, `counted` is None as well."""
    device_used_bytes: int | None
    """Memory used on the whole device, by all processes, just after the window."""
    device_used_missing: str | None
