"""Activation checkpointing: store less for the backward pass, and recompute the rest.

In: a built model and the case's checkpointing setting. Out: the model to run, and how many of its modules are
recomputed. A model's repeated blocks, which are also the units of sharding, are derived from its structure; a
workload does not declare them.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper, checkpoint_wrapper
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from gpuproof.base.errors import UsageError
from gpuproof.records.work.training import Checkpointing
from gpuproof.worker.step.effective import classify_operation


def checkpointed(module: nn.Module, choice: Checkpointing, *, name: str) -> nn.Module:
    """Return the model with the chosen modules recomputed in the backward pass.

    Blocks are replaced in place; `name` is the model's name, for the error message.

    Raises:
        UsageError: blocks are requested, but the model has none.
    """
    if choice == "none":
        return module
    if choice == "all":
        whole: nn.Module = checkpoint_wrapper(module)
        return whole
    blocks = repeated_blocks(module)
    if not blocks:
        raise UsageError(
            f"{name} has no repeated blocks, so {choice} has nothing to recompute",
            place="training.activation_checkpointing",
            next_step="Use all, or none",
        )
    save_costly = partial(create_selective_checkpoint_contexts, _policy)
    options: dict[str, Any] = {"context_fn": save_costly} if choice == "selective" else {}
    for container in list(module.modules()):
        for child_name, child in list(container.named_children()):
            if any(child is block for block in blocks):
                setattr(container, child_name, checkpoint_wrapper(child, **options))
    return module


def num_checkpointed(module: nn.Module) -> int:
    """Count the modules that are recomputed."""
    return sum(isinstance(part, CheckpointWrapper) for part in module.modules())


def has_batch_norm(module: nn.Module) -> bool:
    """Return whether the model has running statistics, which a second forward pass would update again."""
    return any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())


def _policy(_context: Any, operation: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    costly = classify_operation(operation) is not None
    return CheckpointPolicy.MUST_SAVE if costly else CheckpointPolicy.PREFER_RECOMPUTE


def repeated_blocks(module: nn.Module) -> list[nn.Module]:
    """Find a model's repeated blocks: similar list or sequence elements that have several parts.

    An element counts if the same list contains another element of its class; blocks are never nested. Layers
    without submodules do not count as blocks, since gathering them one by one costs more than it saves.
    """
    if isinstance(module, (nn.ModuleList, nn.Sequential)):
        classes = Counter(type(child) for child in module)
        blocks = [child for child in module if classes[type(child)] > 1 and _is_composed(child)]
    else:
        blocks = []
    for child in module.children():
        if not any(child is block for block in blocks):
            blocks += repeated_blocks(child)
    return blocks


def _is_composed(module: nn.Module) -> bool:
    num_parts = sum(1 for part in module.modules() if next(part.parameters(recurse=False), None) is not None)
    return num_parts > 1 and not isinstance(module, (nn.ModuleList, nn.ModuleDict))
