"""GPT-2, built from the plan in `catalogue.gpt2`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from gpuproof.workloads.info.base import InputShape
from gpuproof.workloads.info.catalogue.gpt2 import Gpt2Options
from gpuproof.workloads.torch.encoder import EncoderLayer
from gpuproof.workloads.torch.initial_weights import STANDARD_DEVIATION, draw_normal


def build_gpt2(options: Gpt2Options, shape: InputShape) -> nn.Module:
    """Build GPT-2; maps tokens (batch, seq_len) to scores (batch, seq_len, vocab_size)."""
    return Gpt2(options, seq_len=shape.shape[0]).apply(draw_normal)


class Gpt2(nn.Module):
    """Embedding and learnt positions, layers that see what came before, a norm, the embedding again."""

    def __init__(self, options: Gpt2Options, *, seq_len: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(options.vocab_size, options.d_model)
        self.positions = nn.Parameter(torch.empty(seq_len, options.d_model))
        nn.init.normal_(self.positions, std=STANDARD_DEVIATION)
        self.layers = nn.Sequential(
            *(
                EncoderLayer(
                    options, norm_first=True, activation=nn.GELU("tanh"), dropout=0.0, is_causal=True
                )
                for _ in range(options.num_layers)
            ),
            nn.LayerNorm(options.d_model),
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map (batch, seq_len) to scores (batch, seq_len, vocab_size)."""
        hidden = self.layers(self.embedding(tokens) + self.positions)
        return functional.linear(hidden, self.embedding.weight)
