"""By which score are weights kept? One class a method, all over the lists of weights and masks of a pruner.

A mask is true where a weight is kept. Scores of several weights are compared over all layers at once, so that
a method gives them one scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import nn

from gpuproof.records.work.pruning import PruningMethod

Tensors = Sequence[torch.Tensor]


class Score(Protocol):
    """What a method knows of the weights."""

    buffers: Tensors
    """What it keeps for that, beside the optimizer's state."""

    def see_gradients(self) -> None:
        """Take note of the gradients of an update, before it and before any is masked."""

    def scores(self) -> list[torch.Tensor]:
        """Return a score for each weight: those with the highest are kept."""

    def change(self, masks: Tensors) -> None:
        """Take note of new masks while the weights are still as the old ones left them."""


class MagnitudeScore:
    """|w|; what is pruned stays pruned, since its size is 0.

    Zhu and Gupta 2017 (https://arxiv.org/abs/1710.01878), with one threshold over all layers where they have
    one for each.
    """

    buffers: Tensors = ()

    def __init__(self, weights: Sequence[nn.Parameter], masks: Tensors, _: torch.optim.Optimizer) -> None:
        self._weights, self._masks = weights, masks

    def see_gradients(self) -> None:
        """Gradients say nothing here."""

    def scores(self) -> list[torch.Tensor]:
        """Return |w|, and -1 for what is pruned, so that it stays so among weights that happen to be 0."""
        sizes = (weight.detach().abs() for weight in self._weights)
        return [size.masked_fill_(~mask, -1.0) for size, mask in zip(sizes, self._masks, strict=True)]

    def change(self, masks: Tensors) -> None:
        """What is pruned is forgotten."""


class StateScore(MagnitudeScore):
    """|w|·v^(1/4) with v of Adam, for AdamWPrune: no memory but the masks; what is pruned stays pruned.

    From the AdamWPrune project (its variant bitter7, which it recommends), of which there is no paper; there
    the threshold is that of a 2 % sample, here of all weights, so that the target is met.
    """

    def __init__(
        self, weights: Sequence[nn.Parameter], masks: Tensors, optimizer: torch.optim.Optimizer
    ) -> None:
        super().__init__(weights, masks, optimizer)
        self._state = optimizer.state

    def scores(self) -> list[torch.Tensor]:
        """Return the score; that of a weight without gradients, of which Adam knows nothing, is 0."""
        scores = []
        for weight, mask in zip(self._weights, self._masks, strict=True):
            moment = self._state[weight].get("exp_avg_sq")
            importance = torch.zeros_like(weight) if moment is None else moment.sqrt().sqrt_()
            scores.append(importance.mul_(weight.detach().abs()).masked_fill_(~mask, -1.0))
        return scores


class MovementScore:
    """−Σ g·w over all updates: high where weights were learnt away from zero (Sanh et al. 2020).

    https://arxiv.org/abs/2005.07683, equations 3 and 4, hard movement pruning. As there, the gradient is that
    of the masked weight, it reaches the score of a pruned weight too (straight through), and a weight whose
    score rises comes back with the value that it had. Otherwise than there, scores are summed up plainly and
    not by Adam, and a weight that is pruned does not decay; with plain SGD both are the paper's own.
    """

    def __init__(self, weights: Sequence[nn.Parameter], masks: Tensors, _: torch.optim.Optimizer) -> None:
        self._weights, self._masks = weights, masks
        self._sums = [torch.zeros_like(weight) for weight in weights]
        self._pruned_values = [torch.zeros_like(weight) for weight in weights]
        self.buffers: Tensors = (*self._sums, *self._pruned_values)

    def see_gradients(self) -> None:
        """Add −g·w of this update; w of a pruned weight is the value that it had."""
        for weight, total, pruned in zip(self._weights, self._sums, self._pruned_values, strict=True):
            if weight.grad is not None:  # one of weight and pruned value is zero everywhere
                total.addcmul_(weight.grad, weight.detach() + pruned, value=-1.0)

    def scores(self) -> list[torch.Tensor]:
        """Return the sums."""
        return self._sums

    def change(self, masks: Tensors) -> None:
        """Keep the values of weights that go, and give back those of weights that return."""
        for weight, pruned, mask in zip(self._weights, self._pruned_values, masks, strict=True):
            values = weight.detach() + pruned
            pruned.copy_(values * ~mask)
            weight.copy_(values * mask)


METHODS: Mapping[PruningMethod, Callable[[Sequence[nn.Parameter], Tensors, torch.optim.Optimizer], Score]] = {
    "magnitude": MagnitudeScore,
    "movement": MovementScore,
    "state": StateScore,
}


def keep_highest(scores: Tensors, *, num_pruned: int) -> list[torch.Tensor]:
    """Return masks that leave out the `num_pruned` lowest scores of all; of equal ones those that come first.

    Exactly so many, the same on every rank that has the same scores: no sampling, and ties go by position.
    """
    flat = torch.cat([score.flatten() for score in scores])
    if num_pruned == 0:
        keep = torch.ones_like(flat, dtype=torch.bool)
    else:
        threshold = flat.kthvalue(num_pruned).values
        keep = flat > threshold
        ties = flat == threshold
        num_below = flat.numel() - keep.sum() - ties.sum()
        keep |= ties & (ties.cumsum(0) > num_pruned - num_below)
    parts = keep.split([score.numel() for score in scores])
    return [part.view_as(score) for part, score in zip(parts, scores, strict=True)]
