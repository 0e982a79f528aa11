"""`training`: what trains (torch, or TensorFlow with one process on all devices), how, in which precision.

Of pruning stand here what is asked and the record of what it came to. A sparsity is the share of weights that
are zero for good, of all weights that may be pruned: those of convolutions and linear layers. An update is
one change of the weights, counted from 1 in each launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

from gpuproof.records.journal import record_kind
from gpuproof.records.work.options import Limits, Options, Seed

PruningMethod = Literal["none", "magnitude", "movement", "state"]
SparsityRamp = Literal["cubic", "linear"]
MAX_STEPS = 10**9
DEFAULT_END = 0.75
"""Of all updates: the last quarter is for what is left to learn around the zeros."""
Framework = Literal["torch", "tensorflow"]
Reduction = Literal["auto", "nccl", "hierarchical_copy", "reduction_to_one_device"]
OptimizerName = Literal["SGD", "Adam", "AdamW", "AdamWAdv", "AdamWSpam", "AdamWPrune"]
Precision = Literal["fp64", "fp32", "tf32", "amp", "bf16", "fp8"]
Graphs = Literal[False, True, "auto"]
Weights = Literal["precision", "fp32"]
StoredType = Literal["float32", "float16", "bfloat16"]
STORED_TYPES: Mapping[Precision, StoredType] = {"amp": "float16", "bf16": "bfloat16", "fp8": "bfloat16"}
"""Types of weights that are stored in the precision; under fp8, of those that no product in fp8 reads."""
OptimizerImplementation = Literal["for_loop", "foreach", "fused"]
OptimizerChoice = Literal["auto", "for_loop", "foreach", "fused"]
Checkpointing = Literal["none", "selective", "blocks", "all"]
CompileMode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
_OPTIMIZERS = {name.casefold(): name for name in get_args(OptimizerName)}


def end_of_pruning(end_step: int | None, *, total_steps: int | None) -> int | None:
    """Return the update at which the target is reached; None where nobody knows how many there are."""
    if end_step is not None or total_steps is None:
        return end_step
    return round(DEFAULT_END * total_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningSpec(Options):
    """Weights of convolutions and linear layers that are set to zero while the model learns."""

    method: PruningMethod = "none"
    """Score by which weights are kept: their size (magnitude), whether they were learnt away from zero
    (movement), or their size and the second moment of their gradients (state, of AdamWPrune alone)."""
    target_sparsity: Annotated[float, Limits(gt=0, lt=1)] | None = None
    """The share of these weights that is zero in the end."""
    schedule: SparsityRamp = "cubic"
    """How sparsity rises: fast and then slowly (cubic, of Zhu and Gupta), or evenly (linear)."""
    begin_step: Annotated[int, Limits(ge=0, le=MAX_STEPS)] = 0
    """The update of the weights after which it rises; those of the warm-up count."""
    end_step: Annotated[int, Limits(ge=1, le=MAX_STEPS)] | None = None
    """The update at which the target is reached; null is three quarters of training.total_steps."""
    every_steps: Annotated[int, Limits(ge=1, le=MAX_STEPS)] = 50
    """Updates from one choice of weights to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpamSpec(Options):
    """Constants of the optimizer AdamWSpam."""

    threshold: Annotated[float, Limits(gt=0, le=1e12)] = 5000.0
    """A gradient whose square is over so many times its second moment is cut back to that."""
    reset_steps: Annotated[int, Limits(ge=1, le=MAX_STEPS)] = 500
    """Updates from one reset of both moments to the next."""
    warmup_steps: Annotated[int, Limits(ge=0, le=MAX_STEPS)] = 150
    """Updates after a reset in which the learning rate comes back."""


@record_kind("pruned")
@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What is pruned on one rank just after the window, counted in the weights themselves."""

    rank: int
    method: PruningMethod
    target_sparsity: float
    end_step: int
    """The update at which the target was to be reached."""
    num_updates: int
    """Since the launch began, those of the warm-up included."""
    num_weights: int
    """Weights that may be pruned."""
    num_zero: int
    """Those of them that are zero."""
    num_masked: int
    """Those of them that the mask holds at zero."""
    masks_sha256: str
    """Of all masks in the order of the model: ranks that average gradients have the same."""
    buffers_bytes: int
    """Masks, scores and whatever else the method keeps beside the optimizer's state."""

    @property
    def sparsity(self) -> float:
        """The share of weights that is zero."""
        return self.num_zero / self.num_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """What really ran: copies of a model on several devices, trained by one process."""

    framework: str
    """With its version."""
    num_devices: int
    reduction: str | None
    """How their gradients were summed; None where there is one."""


def _canonical_optimizer(name: Any) -> Any:
    return _OPTIMIZERS.get(name.casefold(), name) if isinstance(name, str) else name


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileSpec(Options):
    """Whether torch.compile is used."""

    enabled: bool = False
    """Compile the model with torch.compile before the warm-up."""
    mode: CompileMode = "default"
    """The mode that torch.compile is given."""
    fullgraph: bool = False
    """Fail where the model cannot be compiled into one graph, without a break."""
    dynamic: bool | None = None
    """Compile for any shape (true), for each shape anew (false), or as torch decides (null)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec(Options):
    """Optimisation and precision."""

    epochs: Annotated[int, Limits(ge=1, le=10**6)] = 3
    """Epochs at most; the measured window may end sooner."""
    precision: Precision = "amp"
    """fp32 is without TF32, tf32 with it; amp is fp16 with a gradient scaler; bf16 is bfloat16 autocast; fp8
    is bf16 with the linear layers' products in fp8. fp64 is for plain products (gemm)."""
    weights: Weights = "fp32"
    """How weights, gradients and the optimizer's state are stored: in fp32, cast in each step by autocast, or
    in the type of the precision. amp needs fp32."""
    optimizer: Annotated[OptimizerName, Limits(read=_canonical_optimizer)] = "SGD"
    """The optimizer, upper or lower case. AdamWAdv is AdamW with AMSGrad, a learning rate that falls to 1e-6
    as a cosine, and gradients clipped at norm 1; AdamWSpam resets its moments and cuts spikes back;
    AdamWPrune is AdamW whose moments state pruning reads."""
    optimizer_implementation: OptimizerChoice = "auto"
    """How the optimizer runs: a tensor at a time (for_loop), many at once (foreach), in one kernel (fused),
    or as torch decides (auto)."""
    learning_rate: Annotated[float, Limits(gt=0, le=1000)] = 0.1
    """The learning rate; constant over the run but for AdamWAdv and AdamWSpam."""
    weight_decay: Annotated[float, Limits(ge=0, le=10)] = 0.0
    """The optimizer's weight decay."""
    momentum: Annotated[float, Limits(ge=0, lt=1)] = 0.9
    """Momentum of SGD; not applied by the others."""
    grad_clip_norm: Annotated[float, Limits(gt=0, le=1e6)] | None = None
    """Largest norm of the gradients; null clips nothing, but 1 under AdamWAdv."""
    compile: CompileSpec = field(default_factory=CompileSpec)
    """torch.compile."""
    seed: Seed = 1337
    """Seed of weights and data, offset by the rank."""
    cudnn_benchmark: bool = True
    """Let cuDNN time its algorithms and take the fastest."""
    deterministic: bool = False
    """Use deterministic algorithms only, and fail where torch has none; cuDNN times nothing."""
    activation_checkpointing: Checkpointing = "none"
    """What is computed again in the backward pass to save memory: nothing, each repeated block (blocks), each
    block but its matrix products, convolutions and attention (selective), or the whole model (all)."""
    cuda_graphs: Graphs = False
    """Capture the whole step as one CUDA graph and replay it: one GPU, no amp. auto captures where it can."""
    keep_freed_memory: bool = False
    """On a processor: keep what a step frees for the next, as a GPU's allocator does, where glibc would give
    it back to the kernel and have pages cleared anew, which takes time that scatters."""
    pruning: PruningSpec = field(default_factory=PruningSpec)
    """Pruning while the model learns."""
    spam: SpamSpec = field(default_factory=SpamSpec)
    """Constants of AdamWSpam."""
    total_steps: Annotated[int, Limits(ge=1, le=MAX_STEPS)] | None = None
    """Updates that AdamWAdv's learning rate and pruning are laid over; null is warm-up and window."""
    framework: Framework = "torch"
    """What trains: torch with a rank a device, or TensorFlow with one process on all devices, for the models
    medium and large, in an environment that has it (--python)."""
    reduction: Reduction = "auto"
    """How TensorFlow sums the gradients of its replicas: over NCCL, copied in a hierarchy, or on one device;
    auto is as TensorFlow decides."""
