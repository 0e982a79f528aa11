"""What a step was really built with, read back from what was built, for the record."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from gpuproof.records.case import Case
from gpuproof.records.what_ran import StepOptions
from gpuproof.worker.step.checkpointing import has_batch_norm, num_checkpointed
from gpuproof.worker.step.cuda_graph import CapturedStep, ModelStep
from gpuproof.worker.step.determinism import deterministic_now
from gpuproof.worker.step.fp8 import count_linear_layers
from gpuproof.worker.step.optimizers import implementation_of
from gpuproof.worker.step.precision import tf32_switch
from gpuproof.worker.step.training import TrainingStep


def step_options(step: ModelStep | CapturedStep, *, case: Case, device: torch.device) -> StepOptions:
    """Describe the step."""
    eager = step.eager if isinstance(step, CapturedStep) else step
    optimizer = eager.optimizer if isinstance(eager, TrainingStep) else None
    linear = count_linear_layers(eager.module)
    return StepOptions(
        optimizer=None if optimizer is None else type(optimizer).__name__,
        optimizer_implementation=None if optimizer is None else implementation_of(optimizer),
        activation_checkpointing=None if optimizer is None else case.training.activation_checkpointing,
        checkpointed_modules=num_checkpointed(eager.module),
        cuda_graphs=isinstance(step, CapturedStep),
        deterministic=deterministic_now(),
        tf32=tf32_switch(device),
        linear_layers=linear.total,
        fp8_linear_layers=linear.in_fp8,
    )


def option_notes(case: Case, module: nn.Module, *, device_type: str) -> Iterator[str]:
    """Say what a reader of the figures must know about the options."""
    if case.training.precision == "fp8" and device_type == "cpu":
        yield "fp8 on a processor is worked out in software: its speed says nothing of a GPU's"
    recomputes = case.kind == "training" and case.training.activation_checkpointing != "none"
    if recomputes and has_batch_norm(module):
        yield "what is computed again updates the running statistics of batch norms twice in each step"
