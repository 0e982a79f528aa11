"""The blocks that a model repeats, found by its structure: sharded, or computed again, one at a time."""

from __future__ import annotations

from collections import Counter

from torch import nn


def repeated_blocks(module: nn.Module) -> list[nn.Module]:
    """Find the blocks that a model repeats: elements of lists and sequences, made of several parts, alike.

    An element counts where another of its class stands in the same list; none lies within another. Layers
    without parts of their own are no blocks: gathering them one by one costs more than it saves.
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
