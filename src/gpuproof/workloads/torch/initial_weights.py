"""Initial weights of transformers: normal and small, so the first losses match random guessing."""

from __future__ import annotations

from torch import nn

STANDARD_DEVIATION = 0.02


def draw_normal(module: nn.Module) -> None:
    """Draw the weights of a linear or embedding layer and zero its bias; for `nn.Module.apply`."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=STANDARD_DEVIATION)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
