"""Optimizers with rules of their own, held against torch's own step and against what their papers say."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from gpuproof.records.work.training import OptimizerName, SpamSpec, TrainingSpec
from gpuproof.worker.step.optimizers import SETTLING_STEPS, clip_norm, cosine, make_optimizer, warmup_share
from records_by_hand import TRAINING

SPEC = replace(TRAINING, optimizer="AdamW", learning_rate=0.01, weight_decay=0.1)
SPAM = SpamSpec(threshold=50.0, reset_steps=40, warmup_steps=10)


def optimizer_of(
    training: TrainingSpec, *, total_steps: int | None = None
) -> tuple[nn.Parameter, torch.optim.Optimizer]:
    torch.manual_seed(3)
    weight = nn.Parameter(torch.randn(4, 5))
    return weight, make_optimizer([[weight]], training, total_steps=total_steps)


def gradients(num_steps: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(4, 5, generator=generator) for _ in range(num_steps)]


def trace(training: TrainingSpec, steps: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the weight after each update."""
    weight, optimizer = optimizer_of(training, total_steps=len(steps))
    weights = []
    for gradient in steps:
        weight.grad = gradient.clone()
        optimizer.step()
        weights.append(weight.detach().clone())
    return weights


@pytest.mark.parametrize("implementation", ["for_loop", "foreach", "fused"])
@pytest.mark.parametrize("name", ["AdamW", "AdamWPrune"])
def test_adamw_and_adamwprune_are_torchs_adamw_step_for_step(
    name: OptimizerName, implementation: str
) -> None:
    steps = gradients(50)
    asked = replace(SPEC, optimizer=name, optimizer_implementation=implementation)  # type: ignore[arg-type]
    torch.manual_seed(3)
    weight = nn.Parameter(torch.randn(4, 5))
    how = {"foreach": implementation == "foreach", "fused": implementation == "fused"}
    reference = torch.optim.AdamW([weight], lr=0.01, weight_decay=0.1, **how)  # type: ignore[arg-type]
    for gradient, found in zip(steps, trace(asked, steps), strict=True):
        weight.grad = gradient.clone()
        reference.step()
        assert torch.equal(found, weight)


def test_adamwadv_is_amsgrad_with_a_cosine_and_clips_at_one() -> None:
    steps = gradients(30)
    torch.manual_seed(3)
    weight = nn.Parameter(torch.randn(4, 5))
    reference = torch.optim.AdamW([weight], lr=0.01, weight_decay=0.1, amsgrad=True)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(reference, T_max=30, eta_min=1e-6)
    for gradient, found in zip(steps, trace(replace(SPEC, optimizer="AdamWAdv"), steps), strict=True):
        weight.grad = gradient.clone()
        reference.step()
        falling.step()
        torch.testing.assert_close(found, weight.detach(), rtol=1e-5, atol=1e-7)
    assert clip_norm(replace(SPEC, optimizer="AdamWAdv")) == 1.0
    assert clip_norm(replace(SPEC, optimizer="AdamWAdv", grad_clip_norm=0.3)) == 0.3
    assert clip_norm(SPEC) is None


def test_the_cosine_falls_from_the_rate_to_its_floor_and_stays() -> None:
    assert cosine(50, highest=0.1, total_steps=100) == pytest.approx((0.1 + 1e-6) / 2)
    assert cosine(25, highest=0.1, total_steps=100) == pytest.approx(
        1e-6 + (0.1 - 1e-6) * (1 + math.sqrt(0.5)) / 2
    )
    assert cosine(1000, highest=0.1, total_steps=100) == 1e-6
    assert cosine(7, highest=1e-8, total_steps=100) == 1e-8


def test_without_its_number_of_updates_a_falling_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="needs the total number of updates"):
        optimizer_of(replace(SPEC, optimizer="AdamWAdv"))


def test_spam_is_adamw_until_its_first_reset_where_nothing_spikes() -> None:
    steps = gradients(SPAM.reset_steps - 1)
    assert all(
        torch.equal(found, expected)
        for found, expected in zip(
            trace(replace(SPEC, optimizer="AdamWSpam", spam=replace(SPAM, threshold=1e6)), steps),
            trace(SPEC, steps),
            strict=True,
        )
    )


def test_spam_follows_its_definition_through_resets_warm_ups_and_spikes() -> None:
    """The whole algorithm, written out once more in plain arithmetic."""
    steps = gradients(100)
    for spike in (5, 30, 70, 85):  # 5 and 85 lie within the settling after the start and a reset
        steps[spike - 1] = steps[spike - 1] * 1000
    torch.manual_seed(3)
    weight, m, v = torch.randn(4, 5).double(), torch.zeros(4, 5).double(), torch.zeros(4, 5).double()
    cut = []
    found = trace(replace(SPEC, optimizer="AdamWSpam", spam=SPAM), steps)
    for t, (gradient, seen) in enumerate(zip(steps, found, strict=True), start=1):
        since = t % 40 if t >= 40 else t
        if t >= 40 and since == 0:
            m, v = torch.zeros_like(m), torch.zeros_like(v)
        g = gradient.double()
        if since >= SETTLING_STEPS and bool((g**2 > 50 * v).any()):
            cut.append(t)
            g = torch.where(g**2 > 50 * v, g.sign() * (50 * v).sqrt(), g)
        rate = 0.01
        if t >= 40 and since < 10:
            rate *= 1 - 0.99 * (1 + math.cos(math.pi * since / 11)) / 2
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        step = (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        weight = weight * (1 - rate * 0.1) - rate * step
        torch.testing.assert_close(seen.double(), weight, rtol=1e-4, atol=1e-6)
    assert {30, 70} <= set(cut)
    assert not {5, 85} & set(cut)


def test_the_rate_comes_back_after_each_reset_and_is_no_product_of_warm_ups() -> None:
    weight, optimizer = optimizer_of(replace(SPEC, optimizer="AdamWSpam", spam=SPAM))
    rates = []
    for gradient in gradients(125):
        weight.grad = gradient
        optimizer.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates[:39] == [0.01] * 39
    for reset in (40, 80, 120):
        warm = rates[reset - 1 : reset + 5]
        assert warm == pytest.approx([0.01 * warmup_share(since, warmup_steps=10) for since in range(6)])
        assert warm[0] == pytest.approx(0.01 * 0.01)
    assert rates[49:79] == [0.01] * 30
