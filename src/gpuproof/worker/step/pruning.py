"""Prunes a model during training using optimizer hooks; the step and its loop are unaffected.

Before an update, the method reads the gradients, which are then masked, so that momentum and clipping ignore
pruned weights. After the update, the masked weights are set to zero again, so neither momentum nor weight
decay restores them. Ranks that average gradients have the same weights and read the same gradients, so they
choose the same masks. A mask is true for weights that are kept. A method scores all layers on one scale,
since scores are compared across all of them.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from gpuproof.base.errors import UsageError
from gpuproof.records.work.training import Pruned, PruningMethod, PruningSpec, SparsityRamp, end_of_pruning

Tensors = Sequence[torch.Tensor]


def prunable_weights(module: nn.Module) -> list[nn.Parameter]:
    """List the weights of convolutions and linear layers, each once; embedding weights stay dense."""
    embeddings = {id(layer.weight) for layer in module.modules() if isinstance(layer, nn.Embedding)}
    layers = (layer for layer in module.modules() if isinstance(layer, _ConvNd | nn.Linear))
    weights: dict[int, nn.Parameter] = {id(layer.weight): layer.weight for layer in layers}  # type: ignore[misc]
    return [weight for identity, weight in weights.items() if identity not in embeddings]


class Pruner:
    """The masks for a model, and the number of updates so far."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        spec: PruningSpec,
        *,
        total_steps: int | None,
    ) -> None:
        """Attach the hooks to the optimizer.

        Raises:
            UsageError: the model has no prunable weights, or the case has no updates in which to prune.
        """
        self._weights = prunable_weights(module)
        if not self._weights:
            raise UsageError(
                "the model has no convolution or linear layer weights",
                place="training.pruning.method",
                next_step="Set training.pruning.method to none, or use another model",
            )
        self.plan = SparsityPlan.of(spec, total_steps=total_steps)
        self.num_updates = 0
        self._spec = spec
        self._num_weights = sum(weight.numel() for weight in self._weights)
        self._masks = [torch.ones_like(weight, dtype=torch.bool) for weight in self._weights]
        self._score = METHODS[spec.method](self._weights, self._masks, optimizer)
        optimizer.register_step_pre_hook(self._before_update)
        optimizer.register_step_post_hook(self._after_update)

    @torch.no_grad()
    def _before_update(self, *_: Any) -> None:
        self._score.see_gradients()
        for weight, mask in zip(self._weights, self._masks, strict=True):
            if weight.grad is not None:
                weight.grad.mul_(mask)

    @torch.no_grad()
    def _after_update(self, *_: Any) -> None:
        self.num_updates += 1
        self._zero_masked()
        if self.plan.chooses_at(self.num_updates):
            self._choose()

    def _choose(self) -> None:
        share = self.plan.sparsity_after(self.num_updates)
        chosen = keep_highest(self._score.scores(), num_pruned=round(share * self._num_weights))
        self._score.change(chosen)
        for mask, new in zip(self._masks, chosen, strict=True):
            mask.copy_(new)
        self._zero_masked()

    def _zero_masked(self) -> None:
        for weight, mask in zip(self._weights, self._masks, strict=True):
            weight.mul_(mask)

    @torch.no_grad()
    def record(self, *, rank: int) -> Pruned:
        """Count the pruned weights by inspecting the weights themselves; waits for the device."""
        digest = hashlib.sha256()
        for mask in self._masks:
            held = mask.contiguous().cpu()
            digest.update(ctypes.string_at(held.data_ptr(), held.numel()))
        buffers = (*self._masks, *self._score.buffers)
        return Pruned(
            rank=rank,
            method=self._spec.method,
            target_sparsity=self.plan.target,
            end_step=self.plan.end,
            num_updates=self.num_updates,
            num_weights=self._num_weights,
            num_zero=sum(int((weight == 0).sum()) for weight in self._weights),
            num_masked=sum(int((~mask).sum()) for mask in self._masks),
            masks_sha256=digest.hexdigest(),
            buffers_bytes=sum(tensor.numel() * tensor.element_size() for tensor in buffers),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SparsityPlan:
    """The target sparsity at each update.

    >>> plan = SparsityPlan(target=0.8, begin=0, end=100, every=50)
    >>> [round(plan.sparsity_after(update), 6) for update in (0, 50, 100, 200)]
    [0.0, 0.7, 0.8, 0.8]
    """

    target: float
    begin: int
    end: int
    every: int
    ramp: SparsityRamp = "cubic"

    @classmethod
    def of(cls, spec: PruningSpec, *, total_steps: int | None) -> Self:
        """Create the pruning schedule for a case's updates.

        Raises:
            UsageError: no updates are left for pruning, or the number of updates is required but unknown.
        """
        assert spec.target_sparsity is not None  # a rule of the recipe guarantees it
        end = end_of_pruning(spec.end_step, total_steps=total_steps)
        if end is None or end <= spec.begin_step:
            raise UsageError(
                "the number of updates is not known"
                if end is None
                else f"pruning would end at update {end}, but starts after update {spec.begin_step}",
                place="training.pruning.end_step",
                next_step="Set training.pruning.end_step to an update after training.pruning.begin_step, or "
                "train longer",
            )
        return cls(
            target=spec.target_sparsity,
            begin=spec.begin_step,
            end=end,
            every=spec.every_steps,
            ramp=spec.schedule,
        )

    def sparsity_after(self, update: int) -> float:
        """Return the fraction of weights that should be zero after an update.

        If p is the completed fraction of the ramp, cubic is s·(1 − (1 − p)³), which is equation 1 of Zhu and
        Gupta 2017 (https://arxiv.org/abs/1710.01878) with an initial sparsity of zero; linear is s·p.
        """
        p = min(max((update - self.begin) / (self.end - self.begin), 0.0), 1.0)
        return self.target * (p if self.ramp == "linear" else 1 - (1 - p) ** 3)

    def chooses_at(self, update: int) -> bool:
        """Return whether to re-select weights after an update: periodically on the ramp, and at its end.

        After the end of the ramp, the masks stay fixed, as in Zhu and Gupta.
        """
        on_the_ramp = self.begin < update < self.end
        return update == self.end or (on_the_ramp and (update - self.begin) % self.every == 0)


class Score(Protocol):
    """Score of each weight, with the state that a method stores for it."""

    buffers: Tensors
    """Tensors that a method stores for pruning, in addition to the optimizer's state."""

    def see_gradients(self) -> None:
        """Read the gradients for an update, before the update and before any gradient is masked."""

    def scores(self) -> list[torch.Tensor]:
        """Return a score for each weight; the weights with the highest scores are kept."""

    def change(self, masks: Tensors) -> None:
        """Record new masks while the weights still have the values left by the old masks."""


class MagnitudeScore:
    """|w|; what is pruned stays pruned, since its size is 0.

    Follows Zhu and Gupta 2017 (https://arxiv.org/abs/1710.01878), but with one threshold for all layers
    instead of one per layer.
    """

    buffers: Tensors = ()

    def __init__(self, weights: Sequence[nn.Parameter], masks: Tensors, _: torch.optim.Optimizer) -> None:
        self._weights, self._masks = weights, masks

    def see_gradients(self) -> None:
        """This method does not use gradients."""

    def scores(self) -> list[torch.Tensor]:
        """Return |w|, or -1 for pruned weights, so that they stay pruned even if other weights are 0."""
        sizes = (weight.detach().abs() for weight in self._weights)
        return [size.masked_fill_(~mask, -1.0) for size, mask in zip(sizes, self._masks, strict=True)]

    def change(self, masks: Tensors) -> None:
        """The values of pruned weights are discarded."""


class StateScore(MagnitudeScore):
    """|w|·v^(1/4) with v of Adam, for AdamWPrune: no memory but the masks; what is pruned stays pruned.

    From the AdamWPrune project (its variant bitter7, which it recommends); there is no paper about it. There,
    the threshold is based on a 2 % sample; here, it is based on all weights, so that the target is met.
    """

    def __init__(
        self, weights: Sequence[nn.Parameter], masks: Tensors, optimizer: torch.optim.Optimizer
    ) -> None:
        super().__init__(weights, masks, optimizer)
        self._state = optimizer.state

    def scores(self) -> list[torch.Tensor]:
        """Return the score; it is 0 for a weight without gradients, for which Adam has no state."""
        scores = []
        for weight, mask in zip(self._weights, self._masks, strict=True):
            moment = self._state[weight].get("exp_avg_sq")
            importance = torch.zeros_like(weight) if moment is None else moment.sqrt().sqrt_()
            scores.append(importance.mul_(weight.detach().abs()).masked_fill_(~mask, -1.0))
        return scores


class MovementScore:
    """−Σ g·w over all updates: high for weights that moved away from zero (Sanh et al. 2020).

    Follows https://arxiv.org/abs/2005.07683, equations 3 and 4, hard movement pruning. As in the paper, the
    gradient is the gradient of the masked weight, it also updates the score of a pruned weight
    (straight-through), and a weight with a rising score is restored with its former value. Unlike in the
    paper, scores are plain sums that do not use Adam, and weight decay does not apply to a pruned weight;
    with plain SGD both are equivalent to the paper.
    """

    def __init__(self, weights: Sequence[nn.Parameter], masks: Tensors, _: torch.optim.Optimizer) -> None:
        self._weights, self._masks = weights, masks
        self._sums = [torch.zeros_like(weight) for weight in weights]
        self._pruned_values = [torch.zeros_like(weight) for weight in weights]
        self.buffers: Tensors = (*self._sums, *self._pruned_values)

    def see_gradients(self) -> None:
        """Add −g·w for this update; for a pruned weight, w is the value before pruning."""
        for weight, total, pruned in zip(self._weights, self._sums, self._pruned_values, strict=True):
            if weight.grad is not None:  # at each position, either the weight or the pruned value is zero
                total.addcmul_(weight.grad, weight.detach() + pruned, value=-1.0)

    def scores(self) -> list[torch.Tensor]:
        """Return the sums."""
        return self._sums

    def change(self, masks: Tensors) -> None:
        """Store the values of weights that are pruned, and restore the values of weights that return."""
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
    """Return masks that drop the `num_pruned` lowest scores overall; in case of ties, the first ones.

    The number dropped is exact, and ranks with the same scores drop the same weights: there is no sampling,
    and ties are broken by position.
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
