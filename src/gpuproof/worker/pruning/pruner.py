"""Prunes a model while it learns, by hooks of its optimizer: the step and its loop know nothing of it.

Before an update gradients are seen by the method, then masked, so that momentum and clipping know of nothing
else. After it the masked weights are set to zero again: neither momentum nor decay brings one back. Ranks
that average gradients hold the same weights and see the same gradients, and so choose the same masks.
"""

from __future__ import annotations

import ctypes
import hashlib
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from gpuproof.base.errors import UsageError
from gpuproof.records.work.pruning import Pruned, PruningSpec
from gpuproof.worker.pruning.schedule import SparsityPlan
from gpuproof.worker.pruning.scores import METHODS, keep_highest


def prunable_weights(module: nn.Module) -> list[nn.Parameter]:
    """List the weights of convolutions and linear layers, each once; what is an embedding too stays dense."""
    embeddings = {id(layer.weight) for layer in module.modules() if isinstance(layer, nn.Embedding)}
    layers = (layer for layer in module.modules() if isinstance(layer, _ConvNd | nn.Linear))
    weights: dict[int, nn.Parameter] = {id(layer.weight): layer.weight for layer in layers}  # type: ignore[misc]
    return [weight for identity, weight in weights.items() if identity not in embeddings]


class Pruner:
    """The masks of a model, and the updates that they have seen."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        spec: PruningSpec,
        *,
        total_steps: int | None,
    ) -> None:
        """Attach to the optimizer.

        Raises:
            UsageError: the model has no weights that may be pruned, or the case no updates for it.
        """
        self._weights = prunable_weights(module)
        if not self._weights:
            raise UsageError(
                "the model has no weights of convolutions or linear layers",
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
        """Count what is pruned, in the weights themselves; waits for the device."""
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
