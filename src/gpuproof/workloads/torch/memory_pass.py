"""Passes over buffers on the device; built from the options in `catalogue.memory`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from gpuproof.workloads.info.base import InputShape
from gpuproof.workloads.info.catalogue.memory import BUFFERS, MemoryOptions, Pattern

SCALE = 3.0


class MemoryPass(nn.Module):
    """Computes a = b, or a = b + s·c, once per sample of a batch; the samples are not used."""

    target: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor

    def __init__(self, pattern: Pattern, buffer_bytes: int) -> None:
        super().__init__()
        for name in ("target", "first", "second")[: BUFFERS[pattern]]:
            self.register_buffer(name, torch.ones(buffer_bytes // 4), persistent=False)
        self.run_once: Callable[[], None] = self._triad if pattern == "triad" else self._copy

    def _copy(self) -> None:
        self.target.copy_(self.first)

    def _triad(self) -> None:
        torch.add(self.first, self.second, alpha=SCALE, out=self.target)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Make one memory pass per sample."""
        for _ in range(len(samples)):
            self.run_once()
        return samples


def build_memory(options: MemoryOptions, _shape: InputShape) -> MemoryPass:
    """Build the memory pass for `options`; maps (batch, 1) to itself."""
    assert not isinstance(options.buffer_bytes, str)
    return MemoryPass(options.pattern, options.buffer_bytes)
