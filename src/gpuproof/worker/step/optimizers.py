"""The optimizer of a case, in the implementation that was asked for, or that torch would choose.

The implementation is always named to torch, never left open: torch then runs that one or refuses, so that
what is recorded is what runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import _default_to_fused_or_foreach
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

from gpuproof.errors import EnvironmentUnfitError
from gpuproof.records.case import OptimizerImplementation, TrainingSpec

IMPLEMENTATIONS: tuple[OptimizerImplementation, ...] = ("for_loop", "foreach", "fused")


def make_optimizer(
    groups: Sequence[list[nn.Parameter]], training: TrainingSpec, *, capturable: bool = False
) -> torch.optim.Optimizer:
    """Make the optimizer of a case over groups of parameters.

    `capturable` keeps Adam's count of steps on the device, as a CUDA graph needs it.

    Raises:
        EnvironmentUnfitError: torch has no such implementation for these parameters.
    """
    listed = [parameter for group in groups for parameter in group]
    chosen = training.optimizer_implementation
    implementation = default_implementation(listed) if chosen == "auto" else chosen
    if implementation == "fused":
        _check_fused(listed)
    options: dict[str, Any] = {
        "lr": training.learning_rate,
        "weight_decay": training.weight_decay,
        "foreach": implementation == "foreach",
        "fused": implementation == "fused",
    }
    if training.optimizer == "SGD":
        options["momentum"] = training.momentum
    else:
        options["capturable"] = capturable
    kind: Any = getattr(torch.optim, training.optimizer)
    optimizer: torch.optim.Optimizer = kind([{"params": group} for group in groups], **options)
    return optimizer


def _check_fused(parameters: list[nn.Parameter]) -> None:
    """Check what torch itself would check, but in the first step."""
    devices = _get_fused_kernels_supported_devices()
    unfit = [p for p in parameters if p.device.type not in devices or not p.is_floating_point()]
    if unfit:
        raise EnvironmentUnfitError(
            f"torch has no fused optimizer for parameters of {unfit[0].dtype} on {unfit[0].device.type}",
            place="training.optimizer_implementation",
            next_step="Use auto",
        )


def default_implementation(parameters: list[nn.Parameter]) -> OptimizerImplementation:
    """Return what torch runs where it is not told: foreach if all parameters are on a GPU, say."""
    tensors: list[torch.Tensor] = [*parameters]
    fused, foreach = _default_to_fused_or_foreach(tensors, differentiable=False, use_fused=False)
    return "fused" if fused else "foreach" if foreach else "for_loop"


def read_implementation(optimizer: torch.optim.Optimizer) -> OptimizerImplementation:
    """Read back what the optimizer runs."""
    named = (name for name in ("fused", "foreach") if optimizer.defaults.get(name))
    return next(named, "for_loop")  # type: ignore[arg-type]  # both are names of implementations
