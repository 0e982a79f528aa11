"""`training`: optimisation, precision, compilation."""

from __future__ import annotations

from pydantic import Field

from gpuproof.config.sections.base import ConfigSection
from gpuproof.records.case import Checkpointing, CompileMode, OptimizerChoice, OptimizerName, Precision


class CompileConfig(ConfigSection):
    """Whether torch.compile is used."""

    enabled: bool = False
    """Compile the model with torch.compile before the warm-up."""
    mode: CompileMode = "default"
    """The mode that torch.compile is given."""
    fullgraph: bool = False
    """Fail where the model cannot be compiled into one graph, without a break."""
    dynamic: bool | None = None
    """Compile for any shape (true), for each shape anew (false), or as torch decides (null)."""


class TrainingConfig(ConfigSection):
    """Optimisation and precision."""

    epochs: int = Field(default=3, ge=1, le=10**6)
    """Epochs at most; the measured window may end sooner."""
    precision: Precision = "amp"
    """fp32 is without TF32, tf32 with it; amp is fp16 with a gradient scaler; bf16 is bfloat16 autocast; fp8
    is bf16 with the linear layers' products in fp8. fp64 is for plain products (gemm)."""
    optimizer: OptimizerName = "SGD"
    """The optimizer."""
    optimizer_implementation: OptimizerChoice = "auto"
    """How the optimizer runs: a tensor at a time (for_loop), many at once (foreach), in one kernel (fused),
    or as torch decides (auto)."""
    learning_rate: float = Field(default=0.1, gt=0, le=1000)
    """The learning rate, constant over the run."""
    weight_decay: float = Field(default=0.0, ge=0, le=10)
    """The optimizer's weight decay."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum of SGD; not applied by Adam, AdamW."""
    grad_clip_norm: float | None = Field(default=None, gt=0, le=1e6)
    """Largest norm of the gradients; null clips nothing."""
    compile: CompileConfig = Field(default_factory=CompileConfig)
    """torch.compile."""
    seed: int = Field(default=1337, ge=0, lt=2**32)
    """Seed of weights and data, offset by the rank."""
    cudnn_benchmark: bool = True
    """Let cuDNN time its algorithms and take the fastest."""
    deterministic: bool = False
    """Use deterministic algorithms only, and fail where torch has none; cuDNN times nothing."""
    activation_checkpointing: Checkpointing = "none"
    """What is computed again in the backward pass to save memory: nothing, each repeated block (blocks), each
    block but its matrix products, convolutions and attention (selective), or the whole model (all)."""
    cuda_graphs: bool = False
    """Capture the whole step as one CUDA graph and replay it: one GPU, no amp."""
