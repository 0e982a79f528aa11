"""Encoder, vision transformer and GPT-2, built from the plans in `catalogue.encoder` and `catalogue.gpt2`."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from gpuproof.workloads.info.base import InputShape
from gpuproof.workloads.info.catalogue.encoder import (
    TRANSFORMER_DROPOUT,
    EncoderSizes,
    TransformerOptions,
    VitOptions,
    vit_positions,
)
from gpuproof.workloads.info.catalogue.gpt2 import Gpt2Options
from gpuproof.workloads.torch.initial_weights import STANDARD_DEVIATION, draw_normal


def build_transformer(options: TransformerOptions, shape: InputShape) -> nn.Module:
    """Build the encoder; maps tokens (batch, seq_len) to scores (batch, seq_len, vocab_size)."""
    return TokenEncoder(options, seq_len=shape.shape[0]).apply(draw_normal)


def build_vit(options: VitOptions, shape: InputShape) -> nn.Module:
    """Build the vision transformer; maps (batch, 3, size, size) to (batch, classes)."""
    positions = vit_positions(options, shape)
    return VisionTransformer(options, positions=positions, num_classes=shape.num_targets).apply(draw_normal)


class SelfAttention(nn.Module):
    """Attention from every position to all others or only to previous ones, with all heads at once."""

    def __init__(self, sizes: EncoderSizes, *, dropout: float, is_causal: bool = False) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.num_heads = sizes.num_heads
        self.dropout = dropout
        self.queries_keys_values = nn.Linear(sizes.d_model, 3 * sizes.d_model)
        self.output = nn.Linear(sizes.d_model, sizes.d_model)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map (batch, positions, d_model) to the same shape."""
        heads = self.queries_keys_values(hidden).unflatten(-1, (3, self.num_heads, -1))
        queries, keys, values = heads.permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(
            queries, keys, values, dropout_p=dropout, is_causal=self.is_causal
        )
        result: torch.Tensor = self.output(mixed.transpose(1, 2).flatten(-2))
        return result


class EncoderLayer(nn.Module):
    """Attention and two linear layers, each with a residual and with a pre-norm or post-norm."""

    def __init__(
        self,
        sizes: EncoderSizes,
        *,
        norm_first: bool,
        activation: nn.Module,
        dropout: float,
        is_causal: bool = False,
    ) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.attention = nn.Sequential(
            SelfAttention(sizes, dropout=dropout, is_causal=is_causal), nn.Dropout(dropout)
        )
        self.attention_norm = nn.LayerNorm(sizes.d_model)
        self.feed_forward = nn.Sequential(
            nn.Linear(sizes.d_model, sizes.d_ff),
            activation,
            nn.Dropout(dropout),
            nn.Linear(sizes.d_ff, sizes.d_model),
            nn.Dropout(dropout),
        )
        self.feed_forward_norm = nn.LayerNorm(sizes.d_model)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map (batch, positions, d_model) to the same shape."""
        if self.norm_first:
            hidden = hidden + self.attention(self.attention_norm(hidden))
            hidden = hidden + self.feed_forward(self.feed_forward_norm(hidden))
        else:
            hidden = self.attention_norm(hidden + self.attention(hidden))
            hidden = self.feed_forward_norm(hidden + self.feed_forward(hidden))
        return hidden


class TokenEncoder(nn.Module):
    """Embedding and sinusoids, encoder layers, and a linear layer back to the vocabulary."""

    positions: torch.Tensor

    def __init__(self, options: TransformerOptions, *, seq_len: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(options.vocab_size, options.d_model)
        self.register_buffer("positions", sinusoids(seq_len, options.d_model), persistent=False)
        self.layers = nn.Sequential(
            *(
                EncoderLayer(options, norm_first=False, activation=nn.ReLU(), dropout=TRANSFORMER_DROPOUT)
                for _ in range(options.num_layers)
            )
        )
        self.classifier = nn.Linear(options.d_model, options.vocab_size)
        self.scale = math.sqrt(options.d_model)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map (batch, seq_len) to scores (batch, seq_len, vocab_size)."""
        hidden = self.embedding(tokens) * self.scale + self.positions
        scores: torch.Tensor = self.classifier(self.layers(hidden))
        return scores


def sinusoids(num_positions: int, width: int) -> torch.Tensor:
    """Return (num_positions, width): alternating sines and cosines, with wavelengths 2π to 10,000 · 2π."""
    frequencies = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    angles = torch.arange(num_positions)[:, None] * frequencies
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[:, :width]


class VisionTransformer(nn.Module):
    """Patches and a class token, encoder layers, and a linear classifier on the class token."""

    def __init__(self, options: VitOptions, *, positions: int, num_classes: int) -> None:
        super().__init__()
        width = options.d_model
        self.patches = nn.Conv2d(3, width, options.patch_size, stride=options.patch_size)
        self.class_token = nn.Parameter(torch.zeros(width))
        self.positions = nn.Parameter(torch.zeros(positions, width))
        self.layers = nn.Sequential(
            *(
                EncoderLayer(options, norm_first=True, activation=nn.GELU(), dropout=0.0)
                for _ in range(options.num_layers)
            ),
            nn.LayerNorm(width),
        )
        self.classifier = nn.Linear(width, num_classes)
        nn.init.normal_(self.positions, std=STANDARD_DEVIATION)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map (batch, 3, size, size) to class scores (batch, classes)."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        class_tokens = self.class_token.expand(len(patches), 1, -1)
        hidden = self.layers(torch.cat((class_tokens.to(patches.dtype), patches), dim=1) + self.positions)
        scores: torch.Tensor = self.classifier(hidden[:, 0])
        return scores


def build_gpt2(options: Gpt2Options, shape: InputShape) -> nn.Module:
    """Build GPT-2; maps tokens (batch, seq_len) to scores (batch, seq_len, vocab_size)."""
    return Gpt2(options, seq_len=shape.shape[0]).apply(draw_normal)


class Gpt2(nn.Module):
    """Embedding and learned positions, causal layers, a norm, and a head tied to the embedding."""

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
