"""What some optimizers do at each update beside torch's own arithmetic: a falling rate, and SPAM.

Each attaches to an optimizer by torch's own hooks, which run where an update runs and nowhere else: a scaler
that leaves an update out leaves these out too. The learning rate is always worked out anew from the one that
was asked for, never from the last.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from gpuproof.records.work.training import TrainingSpec

LOWEST_RATE = 1e-6
SETTLING_STEPS = 20
"""Updates after a reset before gradients are held against a second moment that began at zero. Not in SPAM's
paper; its authors' own code (https://github.com/TianjinYellow/SPAM-Optimizer) has it as `grad_accu_steps`."""
LOWEST_SHARE = 0.01
"""Of the learning rate right after a reset, as in the authors' code."""


def cosine_rate(optimizer: torch.optim.Optimizer, training: TrainingSpec, total_steps: int | None) -> None:
    """Let the learning rate fall to 1e-6 over all updates, by a cosine.

    Raises:
        ValueError: the number of updates is not known; a recipe is refused for that before.
    """
    if total_steps is None:
        raise ValueError("a learning rate that falls needs the number of all updates")
    done = 0

    def before_update(*_: Any) -> None:
        nonlocal done
        _set_rate(optimizer, cosine(done, highest=training.learning_rate, total_steps=total_steps))
        done += 1

    optimizer.register_step_pre_hook(before_update)


def cosine(done: int, *, highest: float, total_steps: int) -> float:
    """Return the learning rate after `done` of all updates: half a cosine from `highest` to 1e-6.

    Equation 5 of https://arxiv.org/abs/1608.03983, without restarts; a rate under 1e-6 stays as it is.

    >>> cosine(0, highest=0.1, total_steps=10), cosine(10, highest=0.1, total_steps=10)
    (0.1, 1e-06)
    """
    lowest = min(LOWEST_RATE, highest)
    share = min(done / total_steps, 1.0)
    return lowest + (highest - lowest) * (1 + math.cos(math.pi * share)) / 2


def spike_aware(optimizer: torch.optim.Optimizer, training: TrainingSpec, _total: int | None) -> None:
    """Make AdamW spike-aware: SPAM, Huang et al. 2025, https://arxiv.org/abs/2501.06842.

    Every `reset_steps` both moments are set to zero and the learning rate warms up again; a gradient whose
    square is over `threshold` times its second moment v becomes sign(g)·√(threshold·v). Where paper and the
    authors' code differ in detail it is done as in the code: see the constants of this module, and Adam's own
    count of steps goes on. Otherwise than there, the decay follows the warmed-up rate, ε is torch's 1e-8, and
    all momentum is kept (the paper's sparse momentum is an option of it).
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
    """Return the share of the learning rate so many updates after a reset; 0 is the update of the reset.

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
