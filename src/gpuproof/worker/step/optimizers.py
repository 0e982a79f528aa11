"""Create the optimizer of a case, in the requested implementation or the one torch would choose.

Every optimizer is one of torch's, some of them with a rule that runs at each update (`OptimizerKind.rule`): a
decaying rate, or SPAM. A rule is attached with torch's own hooks, which run only when an update runs, so if a
scaler skips an update, the rule is skipped too. The learning rate is always computed from the requested rate,
never from the previous one. The implementation is always passed to torch explicitly, and torch either runs it
or rejects it, so the record always matches what ran.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import _default_to_fused_or_foreach
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.records.work.training import OptimizerImplementation, OptimizerName, TrainingSpec

LOWEST_RATE = 1e-6
SETTLING_STEPS = 20
"""Number of updates between resetting the second moment to zero and comparing gradients with it. It is not in
SPAM's paper, but in the authors' own code (https://github.com/TianjinYellow/SPAM-Optimizer), as
`grad_accu_steps`."""
LOWEST_SHARE = 0.01
"""Fraction of the learning rate right after a reset, as in the authors' code."""
Rule = Callable[[torch.optim.Optimizer, TrainingSpec, int | None], None]


def cosine_rate(optimizer: torch.optim.Optimizer, training: TrainingSpec, total_steps: int | None) -> None:
    """Decay the learning rate to 1e-6 over all updates, following a cosine.

    Raises:
        ValueError: the number of updates is unknown; such recipes are rejected earlier.
    """
    if total_steps is None:
        raise ValueError("a decaying learning rate needs the total number of updates")
    done = 0

    def before_update(*_: Any) -> None:
        nonlocal done
        _set_rate(optimizer, cosine(done, highest=training.learning_rate, total_steps=total_steps))
        done += 1

    optimizer.register_step_pre_hook(before_update)


def cosine(done: int, *, highest: float, total_steps: int) -> float:
    """Return the learning rate after `done` updates: half a cosine period from `highest` to 1e-6.

    Uses equation 5 of https://arxiv.org/abs/1608.03983, without restarts; a rate that is already below 1e-6
    is left unchanged.

    >>> cosine(0, highest=0.1, total_steps=10), cosine(10, highest=0.1, total_steps=10)
    (0.1, 1e-06)
    """
    lowest = min(LOWEST_RATE, highest)
    share = min(done / total_steps, 1.0)
    return lowest + (highest - lowest) * (1 + math.cos(math.pi * share)) / 2


def spike_aware(optimizer: torch.optim.Optimizer, training: TrainingSpec, _total: int | None) -> None:
    """Make AdamW spike-aware: SPAM, Huang et al. 2025, https://arxiv.org/abs/2501.06842.

    Every `reset_steps`, both moments are set to zero and the learning rate warms up again. A gradient becomes
    sign(g)·√(threshold·v) if its square exceeds `threshold` times its second moment v. If the paper and the
    authors' code differ in detail, this function follows the code: see the constants in this module. As in
    that code, Adam's own step count is not reset. Unlike the authors' code, weight decay follows the
    warmed-up rate, ε is torch's 1e-8, and all of the momentum is kept (sparse momentum is optional in the
    paper).
    """
    spec = training.spam
    done = 0

    def before_update(*_: Any) -> None:
        nonlocal done
        done += 1
        since_reset = done % spec.reset_steps if done >= spec.reset_steps else done
        if done >= spec.reset_steps:
            if since_reset == 0:
                _reset_moments(optimizer)
            share = warmup_share(since_reset, warmup_steps=spec.warmup_steps)
            _set_rate(optimizer, training.learning_rate * share)
        if since_reset >= SETTLING_STEPS:
            _cut_spikes(optimizer, threshold=spec.threshold)

    optimizer.register_step_pre_hook(before_update)


def warmup_share(since_reset: int, *, warmup_steps: int) -> float:
    """Return the learning-rate factor for an update, counted from a reset; 0 is the reset.

    >>> round(warmup_share(0, warmup_steps=150), 6), warmup_share(150, warmup_steps=150)
    (0.01, 1.0)
    """
    if since_reset >= warmup_steps:
        return 1.0
    fallen = (1 + math.cos(math.pi * since_reset / (warmup_steps + 1))) / 2
    return 1 - (1 - LOWEST_SHARE) * fallen


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def _reset_moments(optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        state["exp_avg"].zero_()
        state["exp_avg_sq"].zero_()


def _cut_spikes(optimizer: torch.optim.Optimizer, *, threshold: float) -> None:
    for parameter, state in optimizer.state.items():
        if parameter.grad is not None:
            limit = (state["exp_avg_sq"] * threshold).sqrt_()
            parameter.grad.clamp_(-limit, limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerKind:
    """Components of an optimizer."""

    base: type[torch.optim.Optimizer]
    options: Mapping[str, Any] = field(default_factory=dict)
    rule: Rule | None = None
    """Attaches additional actions to each update; receives the total number of updates, if known."""
    clip_norm: float | None = None
    """Norm for gradient clipping, used if the case does not set one."""


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
"""AdamWAdv combines AMSGrad (Reddi et al. 2018, https://arxiv.org/abs/1904.09237), cosine decay (Loshchilov
and Hutter 2017, https://arxiv.org/abs/1608.03983, without restarts) and clipping. AdamWPrune is bit-identical
to AdamW (by the same authors, 2019, https://arxiv.org/abs/1711.05101); only state pruning reads its moments.
All of them apply weight decay to all parameters, including biases and norms, as in the paper."""


def make_optimizer(
    groups: Sequence[list[nn.Parameter]],
    training: TrainingSpec,
    *,
    capturable: bool = False,
    total_steps: int | None = None,
) -> torch.optim.Optimizer:
    """Create a case's optimizer for the given parameter groups.

    `capturable` keeps Adam's step count on the device, as a CUDA graph requires; `total_steps` is the total
    number of updates in the launch.

    Raises:
        EnvironmentUnfitError: torch does not provide this implementation for these parameters.
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
    """Return the norm for gradient clipping: the case's, else the optimizer's default, else None."""
    return training.grad_clip_norm or KINDS[training.optimizer].clip_norm


def _check_fused(parameters: list[nn.Parameter]) -> None:
    """Check conditions that torch itself would not check before the first step."""
    devices = _get_fused_kernels_supported_devices()
    unfit = [p for p in parameters if p.device.type not in devices or not p.is_floating_point()]
    if unfit:
        raise EnvironmentUnfitError(
            f"torch has no fused optimizer for parameters of {unfit[0].dtype} on {unfit[0].device.type}",
            place="training.optimizer_implementation",
            next_step="Use auto",
        )


def default_implementation(parameters: list[nn.Parameter]) -> OptimizerImplementation:
    """Return torch's default implementation: foreach if all parameters are on a GPU."""
    tensors: list[torch.Tensor] = [*parameters]
    fused, foreach = _default_to_fused_or_foreach(tensors, differentiable=False, use_fused=False)
    return "fused" if fused else "foreach" if foreach else "for_loop"


def read_implementation(optimizer: torch.optim.Optimizer) -> OptimizerImplementation:
    """Return the implementation that the optimizer actually runs."""
    named = (name for name in ("fused", "foreach") if optimizer.defaults.get(name))
    return next(named, "for_loop")  # type: ignore[arg-type]  # both are names of implementations
