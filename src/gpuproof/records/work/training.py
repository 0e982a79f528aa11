"""`training`: framework (torch, or TensorFlow in one process on all devices), method, precision.

This module contains the options for pruning and the record of its result. Sparsity is the fraction of
prunable weights (those of convolutions and linear layers) that are permanently zero. An update is one change
of the weights, counted from 1 in each launch.
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
"""Default fraction of all updates after which the target is reached, so that the remaining weights can
adapt."""
Framework = Literal["torch", "tensorflow"]
Reduction = Literal["auto", "nccl", "hierarchical_copy", "reduction_to_one_device"]
OptimizerName = Literal["SGD", "Adam", "AdamW", "AdamWAdv", "AdamWSpam", "AdamWPrune"]
Precision = Literal["fp64", "fp32", "tf32", "amp", "bf16", "fp8"]
Graphs = Literal[False, True, "auto"]
Weights = Literal["precision", "fp32"]
StoredType = Literal["float32", "float16", "bfloat16"]
STORED_TYPES: Mapping[Precision, StoredType] = {"amp": "float16", "bf16": "bfloat16", "fp8": "bfloat16"}
"""Data types in which weights are stored at each precision; under fp8, only for weights that are not used in
fp8 matmuls."""
OptimizerImplementation = Literal["for_loop", "foreach", "fused"]
OptimizerChoice = Literal["auto", "for_loop", "foreach", "fused"]
Checkpointing = Literal["none", "selective", "blocks", "all"]
CompileMode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
_OPTIMIZERS = {name.casefold(): name for name in get_args(OptimizerName)}


def end_of_pruning(end_step: int | None, *, total_steps: int | None) -> int | None:
    """Return the update at which the target is reached; None if the number of updates is unknown."""
    if end_step is not None or total_steps is None:
        return end_step
    return round(DEFAULT_END * total_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningSpec(Options):
    """Pruning: weights of convolutions and linear layers are set to zero during training."""

    method: PruningMethod = "none"
    """Score that decides which weights are kept: their absolute value (magnitude), whether training moved
    them away from zero (movement), or their absolute value and the second moment of their gradients (state,
    AdamWPrune only)."""
    target_sparsity: Annotated[float, Limits(gt=0, lt=1)] | None = None
    """Final fraction of these weights that are zero."""
    schedule: SparsityRamp = "cubic"
    """How sparsity increases: fast at first, then slowly (cubic, by Zhu and Gupta), or at a constant rate
    (linear)."""
    begin_step: Annotated[int, Limits(ge=0, le=MAX_STEPS)] = 0
    """The weight update after which sparsity starts to rise; warm-up updates count."""
    end_step: Annotated[int, Limits(ge=1, le=MAX_STEPS)] | None = None
    """The update at which the target is reached; null means three quarters of the way through
    training.total_steps."""
    every_steps: Annotated[int, Limits(ge=1, le=MAX_STEPS)] = 50
    """Number of updates between two selections of weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpamSpec(Options):
    """Constants of the AdamWSpam optimizer."""

    threshold: Annotated[float, Limits(gt=0, le=1e12)] = 5000.0
    """Ratio of a gradient's square to its second moment above which the gradient is clipped to that limit."""
    reset_steps: Annotated[int, Limits(ge=1, le=MAX_STEPS)] = 500
    """Number of updates between two resets of both moments."""
    warmup_steps: Annotated[int, Limits(ge=0, le=MAX_STEPS)] = 150
    """Number of updates after a reset during which the learning rate recovers."""


@record_kind("pruned")
@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """Pruned weights on one rank, counted from the weights themselves just after the window."""

    rank: int
    method: PruningMethod
    target_sparsity: float
    end_step: int
    """The update by which the target sparsity should be reached."""
    num_updates: int
    """Number of updates since the start of the launch, including the warm-up."""
    num_weights: int
    """Number of prunable weights."""
    num_zero: int
    """Number of prunable weights that are zero."""
    num_masked: int
    """Number of prunable weights that the mask keeps at zero."""
    masks_sha256: str
    """Hash of all masks in model order: the same on all ranks that average gradients."""
    buffers_bytes: int
    """Size of masks, scores and anything else that the method stores in addition to the optimizer's state."""

    @property
    def sparsity(self) -> float:
        """Fraction of weights that are zero."""
        return self.num_zero / self.num_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """The setup that actually ran: copies of a model on several devices, trained by one process."""

    framework: str
    """The framework and its version."""
    num_devices: int
    reduction: str | None
    """How the copies' gradients were summed; None if there is only one copy."""


def _canonical_optimizer(name: Any) -> Any:
    return _OPTIMIZERS.get(name.casefold(), name) if isinstance(name, str) else name


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileSpec(Options):
    """Whether torch.compile is used."""

    enabled: bool = False
    """Compile the model with torch.compile before warm-up."""
    mode: CompileMode = "default"
    """The torch.compile mode."""
    fullgraph: bool = False
    """Fail if the model cannot be compiled into a single graph without graph breaks."""
    dynamic: bool | None = None
    """Compile for all shapes at once (true), separately for each shape (false), or as torch decides
    (null)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec(Options):
    """Settings for optimization and precision."""

    epochs: Annotated[int, Limits(ge=1, le=10**6)] = 3
    """Number of epochs to train if benchmark.enabled is false; otherwise the measured window decides the
    length."""
    precision: Precision = "amp"
    """Training precision: fp32 does not use TF32, tf32 does; amp is fp16 with a gradient scaler; bf16 is
    bfloat16 autocast; fp8 is bf16 with the matmuls of linear layers in fp8. fp64 is only for plain matmuls
    (gemm)."""
    weights: Weights = "fp32"
    """How weights, gradients and the optimizer's state are stored: in fp32, cast in each step by autocast, or
    in the precision's own type. amp requires fp32. Only for training; inference.weights is for inference and
    serving."""
    optimizer: Annotated[OptimizerName, Limits(read=_canonical_optimizer)] = "SGD"
    """The optimizer, in upper or lower case. AdamWAdv is AdamW with AMSGrad, a cosine learning rate schedule
    down to 1e-6, and gradients clipped at norm 1; AdamWSpam resets its moments and clips spikes; AdamWPrune
    is AdamW with moments that state pruning uses."""
    optimizer_implementation: OptimizerChoice = "auto"
    """How the optimizer updates tensors: one at a time (for_loop), many at once (foreach), in one kernel
    (fused), or as torch decides (auto)."""
    learning_rate: Annotated[float, Limits(gt=0, le=1000)] = 0.1
    """The learning rate, which is constant over the run except for AdamWAdv and AdamWSpam."""
    weight_decay: Annotated[float, Limits(ge=0, le=10)] = 0.0
    """The optimizer's weight decay."""
    momentum: Annotated[float, Limits(ge=0, lt=1)] = 0.9
    """Momentum of SGD; other optimizers ignore it."""
    grad_clip_norm: Annotated[float, Limits(gt=0, le=1e6)] | None = None
    """Maximum gradient norm; null disables clipping, except under AdamWAdv, which clips at 1."""
    compile: CompileSpec = field(default_factory=CompileSpec)
    """torch.compile."""
    seed: Seed = 1337
    """Seed for weights, which start the same on all ranks, and for data: synthetic samples placed on the
    device differ by rank (the seed plus the rank), and samples of a data set or a loader are shuffled in one
    order that ranks share out."""
    cudnn_benchmark: bool = True
    """Let cuDNN benchmark its algorithms and pick the fastest."""
    deterministic: bool = False
    """Use only deterministic algorithms, and fail if torch has none for an operation; cuDNN benchmarking is
    off."""
    activation_checkpointing: Checkpointing = "none"
    """Parts that are recomputed in the backward pass to save memory: nothing, each repeated block (blocks),
    each block except its matmuls, convolutions and attention (selective), or the whole model (all)."""
    cuda_graphs: Graphs = False
    """Capture the whole step as one CUDA graph and replay it; requires data.loading=device and no
    torch.compile mode that makes its own graphs, and for training also one rank, a precision other than amp,
    no checkpointing, no pruning and neither AdamWAdv nor AdamWSpam. auto captures if possible."""
    keep_freed_memory: bool = False
    """On a CPU, keep freed memory for the next step, as a GPU's allocator does. Otherwise, glibc returns it
    to the kernel, which has to clear the pages again. How long this takes varies."""
    pruning: PruningSpec = field(default_factory=PruningSpec)
    """Pruning during training."""
    spam: SpamSpec = field(default_factory=SpamSpec)
    """Constants of AdamWSpam."""
    total_steps: Annotated[int, Limits(ge=1, le=MAX_STEPS)] | None = None
    """Number of updates that AdamWAdv's learning rate schedule and pruning cover; null means warm-up plus
    window."""
    framework: Framework = "torch"
    """The framework: torch with one rank per device, or TensorFlow in one process on distributed.nproc
    devices. TensorFlow needs the medium or large model, synthetic data on the device, fp32 or tf32, SGD or
    Adam, and an environment where it is installed (--python)."""
    reduction: Reduction = "auto"
    """How TensorFlow sums the gradients of its replicas: over NCCL, by hierarchical copies, or on one device;
    auto lets TensorFlow decide."""
