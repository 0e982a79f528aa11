"""`training`: optimisation, precision, compilation."""

from __future__ import annotations

from pydantic import Field

from gpuproof.config.sections.base import ConfigSection
from gpuproof.records.case import Checkpointing, CompileMode, OptimizerChoice, OptimizerName, Precision


class CompileConfig(ConfigSection):
    """Whether torch.compile is used."""

    enabled: bool = Field(
        default=False, description="Compile the model with torch.compile before the warm-up."
    )
    mode: CompileMode = Field(default="default", description="The mode that torch.compile is given.")
    fullgraph: bool = Field(
        default=False, description="Fail where the model cannot be compiled into one graph, without a break."
    )
    dynamic: bool | None = Field(
        default=None,
        description="Compile for any shape (true), for each shape anew (false), or as torch decides (null).",
    )


class TrainingConfig(ConfigSection):
    """Optimisation and precision."""

    epochs: int = Field(
        default=3, ge=1, le=10**6, description="Epochs at most; the measured window may end sooner."
    )
    precision: Precision = Field(
        default="amp",
        description="fp32 is without TF32, tf32 with it; amp is fp16 with a gradient scaler; bf16 is "
        "bfloat16 autocast; fp8 is bf16 with the linear layers' products in fp8.",
    )
    optimizer: OptimizerName = Field(default="SGD", description="The optimizer.")
    optimizer_implementation: OptimizerChoice = Field(
        default="auto",
        description="How the optimizer runs: a tensor at a time (for_loop), many at once (foreach), in one "
        "kernel (fused), or as torch decides (auto).",
    )
    learning_rate: float = Field(
        default=0.1, gt=0, le=1000, description="The learning rate, constant over the run."
    )
    weight_decay: float = Field(default=0.0, ge=0, le=10, description="The optimizer's weight decay.")
    momentum: float = Field(
        default=0.9, ge=0, lt=1, description="Momentum of SGD; not applied by Adam, AdamW."
    )
    grad_clip_norm: float | None = Field(
        default=None, gt=0, le=1e6, description="Largest norm of the gradients; null clips nothing."
    )
    compile: CompileConfig = Field(default_factory=CompileConfig, description="torch.compile.")
    seed: int = Field(
        default=1337, ge=0, lt=2**32, description="Seed of weights and data, offset by the rank."
    )
    cudnn_benchmark: bool = Field(
        default=True, description="Let cuDNN time its algorithms and take the fastest."
    )
    deterministic: bool = Field(
        default=False,
        description="Use deterministic algorithms only, and fail where torch has none; cuDNN times nothing.",
    )
    activation_checkpointing: Checkpointing = Field(
        default="none",
        description="What is computed again in the backward pass to save memory: nothing, each repeated "
        "block (blocks), each block but its matrix products, convolutions and attention (selective), or the "
        "whole model (all).",
    )
    cuda_graphs: bool = Field(
        default=False, description="Capture the whole step as one CUDA graph and replay it: one GPU, no amp."
    )
