"""The optimizer of a case, in the implementation that was asked for, or that torch would choose.

Every optimizer is one of torch's, some with a rule that runs at each update (`OptimizerKind.rule`). The
implementation is always named to torch, never left open: torch then runs that one or refuses, so that what is
recorded is what runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import _default_to_fused_or_foreach
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.records.work.training import OptimizerImplementation, OptimizerName, TrainingSpec
from gpuproof.worker.optimizer.update_rules import cosine_rate, spike_aware

Rule = Callable[[torch.optim.Optimizer, TrainingSpec, int | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerKind:
    """What an optimizer is made of."""

    base: type[torch.optim.Optimizer]
    options: Mapping[str, Any] = field(default_factory=dict)
    rule: Rule | None = None
    """Attaches what else happens at each update, given the number of all updates where it is known."""
    clip_norm: float | None = None
    """Norm at which gradients are clipped where the case names none."""


KINDS: Mapping[OptimizerName, OptimizerKind] = {
    "SGD": OptimizerKind(base=torch.optim.SGD),
    "Adam": OptimizerKind(base=torch.optim.Adam),
    "AdamW": OptimizerKind(base=torch.optim.AdamW),
    "AdamWAdv": OptimizerKind(
        base=torch.optim.AdamW, options={"amsgrad": True}, rule=cosine_rate, clip_norm=1.0
    ),
    "AdamWSpam": OptimizerKind(base=torch.optim.AdamW, rule=spike_aware),
    "AdamWPrune": OptimizerKind(base=torch.optim.AdamW),
}
"""AdamWAdv joins AMSGrad (Reddi et al. 2018, https://arxiv.org/abs/1904.09237), a cosine (Loshchilov and
Hutter 2017, https://arxiv.org/abs/1608.03983, without restarts) and a clip. AdamWPrune is AdamW (the
same, 2019, https://arxiv.org/abs/1711.05101) to the bit: state pruning alone reads its moments. All of them
decay all parameters, biases and norms included, as the paper has it."""


def make_optimizer(
    groups: Sequence[list[nn.Parameter]],
    training: TrainingSpec,
    *,
    capturable: bool = False,
    total_steps: int | None = None,
) -> torch.optim.Optimizer:
    """Make the optimizer of a case over groups of parameters.

    `capturable` keeps Adam's count of steps on the device, as a CUDA graph needs it; `total_steps` are all
    updates of the launch.

    Raises:
        EnvironmentUnfitError: torch has no such implementation for these parameters.
    """
    listed = [parameter for group in groups for parameter in group]
    chosen = training.optimizer_implementation
    implementation = default_implementation(listed) if chosen == "auto" else chosen
    if implementation == "fused":
        _check_fused(listed)
    kind = KINDS[training.optimizer]
    options: dict[str, Any] = {
        "lr": training.learning_rate,
        "weight_decay": training.weight_decay,
        "foreach": implementation == "foreach",
        "fused": implementation == "fused",
        **kind.options,
    }
    if kind.base is torch.optim.SGD:
        options["momentum"] = training.momentum
    else:
        options["capturable"] = capturable
    optimizer = kind.base([{"params": group} for group in groups], **options)
    if kind.rule is not None:
        kind.rule(optimizer, training, total_steps)
    return optimizer


def clip_norm(training: TrainingSpec) -> float | None:
    """Return the norm at which gradients are clipped: the case's, else the optimizer's own, else None."""
    return training.grad_clip_norm or KINDS[training.optimizer].clip_norm


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
