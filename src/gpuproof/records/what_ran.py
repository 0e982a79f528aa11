"""The records of what really ran: the step's options, kernels, what was compiled, memory and connections.

`Effective` comes between warm-up and window, `Compilation` after the window; `StepOptions` is part of the
setup. A flag is in the case; here is what came of it. Of a rank's memory stands what the closed form says
beside what was counted and measured; of its TCP connections what the kernel counted: packets that are lost on
a link are sent again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from gpuproof.records.journal import record_kind
from gpuproof.records.work.training import Checkpointing, OptimizerImplementation

Operation = Literal["matrix product", "convolution", "attention"]
Layout = Literal["NHWC", "NCHW", "either", "other"]
Tf32Switch = Literal["on", "off", "mixed"]
AT_POWER_CAP = "at the power cap"
"""How the reason ends that a worker gives for a window which the cap made longer."""
AT_CAP: Final = 0.5
"""Share of the window from which a power cap, or heat, is what limited a launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """What a step was really built with, read back where torch can be asked; None where it has no meaning."""

    optimizer: str | None
    optimizer_implementation: OptimizerImplementation | None
    activation_checkpointing: Checkpointing | None
    checkpointed_modules: int
    """Modules that are computed again in the backward pass."""
    cuda_graphs: bool
    """The whole step is one captured graph, replayed; or the one of its bucket."""
    deterministic: bool
    tf32: Tf32Switch | None
    """Whether CUDA may use TF32 in fp32; None on a processor, which has none. torch has a switch for products
    and one for convolutions: `mixed` is one of them on."""
    linear_layers: int
    fp8_linear_layers: int
    """Linear layers that multiply in fp8, of all linear layers."""
    graph_ends: tuple[int, ...] = ()
    """Up to which places attention reads where decoding has a graph, or a compiled step, for each bucket."""
    weights: str | None = None
    """The types in which weights are stored; None without weights, and in runs of before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedWork:
    """Operations of one kind in one step, in one arithmetic, as torch handed them to its kernels."""

    operation: Operation
    dtype: str
    """Of the operands: `bfloat16`, or `float8_e5m2 × float8_e4m3fn` where they differ."""
    layout: Layout | None
    """Of a convolution's input; `either` where its sizes fit both. None for what is no image."""
    flops: float
    calls: int


@record_kind("effective")
@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """What the kernels of one step were given, seen in a step of its own between warm-up and window."""

    rank: int
    work: tuple[ObservedWork, ...]
    uncounted: tuple[str, ...]
    """Products, convolutions and attentions whose FLOPs no formula gives; they are in no share."""
    missing: str | None
    """Why nothing could be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphBreak:
    """A place where the compiler gave up, went back to Python, and began another graph."""

    reason: str
    times: int


@record_kind("compilation")
@dataclass(frozen=True, slots=True, kw_only=True)
class Compilation:
    """What torch.compile made of the model, counted from the process's start to the window's end."""

    rank: int
    mode: str
    num_graphs: int
    graph_breaks: tuple[GraphBreak, ...]
    eager_frames: int
    """Functions that it was asked to compile and that run uncompiled."""
    cuda_graph_skips: int
    """Times that a mode with CUDA graphs ran without one."""
    compiled_in_window: int
    """Graphs compiled, or given up, inside the measured window."""


def share_of_flops(
    effective: Effective, fits: Callable[[ObservedWork], bool], *, images: bool = False
) -> float:
    """Return the share of the observed FLOPs that fits; of those of convolutions only, with `images`.

    0 where there is nothing to be a share of.
    """
    considered = [work for work in effective.work if not images or work.operation == "convolution"]
    total = sum(work.flops for work in considered)
    return sum(work.flops for work in considered if fits(work)) / total if total else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCap:
    """What a rank saw of its device's power cap."""

    share: float | None
    """Of the window, 0 to 1, spent at the cap; None where the driver does not tell."""
    settled_after_s: float | None
    """How long steps ran before the window until the cap had settled; None where it was not met."""
    needed_s: float
    missing: str | None
    first_clock_mhz: float | None = None
    """When steps had just begun to settle, and the power then."""
    first_power_w: float | None = None
    period_s: float | None = None
    """Of the cap's controller; None where none showed, and in runs of before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedConnection:
    """One or several connections between the same two addresses, since they were opened."""

    local: str
    """The address at this end."""
    peer: str
    """The one at the other."""
    segments_sent: int
    """With data, those that were sent again included."""
    segments_sent_again: int


@record_kind("connections")
@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """The connections that a rank has with other processes, by address, after what it measured."""

    rank: int
    connections: tuple[CountedConnection, ...]
    missing: str | None
    """Why nobody knows; None where the connections are those that there were."""


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
