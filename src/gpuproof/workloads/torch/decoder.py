"""The Llama-style decoder, dense or with experts, built from the plans in `catalogue.decoder`.

Two choices affect results. First, keys and values are repeated for each head in their group before attention
if gradients are needed or numbers are in fp32. torch's attention kernels accept fewer key-value heads only in
half precision, and would otherwise silently fall back to a slow kernel. A single token that reads from a
cache needs no copies in any type, since the heads in a group are treated as positions. Second, experts run
one after another on the tokens routed to them; splitting the batch by expert waits for the device once per
layer.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from gpuproof.workloads.info.base import InputShape
from gpuproof.workloads.info.catalogue.decoder import DecoderOptions, DecoderPlan, MoeDecoderOptions
from gpuproof.workloads.torch.generation import KeyValueCache, LayerCache
from gpuproof.workloads.torch.initial_weights import draw_normal

ROTARY_BASE = 10_000.0
NORM_EPSILON = 1e-5
HAS_GROUPS = "enable_gqa" in str(functional.scaled_dot_product_attention.__doc__)
"""Whether attention in this torch version accepts fewer key heads than query heads: since 2.5."""


def build_decoder(options: DecoderOptions | MoeDecoderOptions, shape: InputShape) -> nn.Module:
    """Build the decoder; maps tokens (batch, seq_len) to scores (batch, seq_len, vocab_size)."""
    return Decoder(options.plan, seq_len=shape.shape[0]).apply(draw_normal)


class Decoder(nn.Module):
    """Embedding, decoder layers, a norm, and a linear layer over the vocabulary."""

    angles: torch.Tensor

    def __init__(self, plan: DecoderPlan, *, seq_len: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(plan.vocab_size, plan.d_model)
        self.register_buffer("angles", rotary_angles(seq_len, plan.head_dim), persistent=False)
        self.layers = nn.ModuleList(DecoderLayer(plan) for _ in range(plan.num_layers))
        self.norm = nn.RMSNorm(plan.d_model, eps=NORM_EPSILON)
        self.head = nn.Linear(plan.d_model, plan.vocab_size, bias=False)
        if plan.tied_embeddings:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map (batch, seq_len) to scores (batch, seq_len, vocab_size)."""
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden, self.angles)
        scores: torch.Tensor = self.head(self.norm(hidden))
        return scores

    def new_cache(self, *, num_slots: int, max_tokens: int) -> KeyValueCache:
        """Return an empty cache, including the angles of all positions; `forward` uses its own angles."""
        angles = rotary_angles(max_tokens, self.angles.shape[-1]).to(self.angles)
        return KeyValueCache(
            num_layers=len(self.layers), num_slots=num_slots, max_tokens=max_tokens, angles=angles
        )

    def next_scores(self, tokens: torch.Tensor, cache: KeyValueCache) -> torch.Tensor:
        """Map (batch, tokens), appended to the cache, to scores (batch, vocab_size) of the last token."""
        angles = cache.next_angles(tokens.shape[1])
        hidden = self.embedding(tokens)
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            hidden = layer(hidden, angles, layer_cache)
        scores: torch.Tensor = self.head(self.norm(hidden[:, -1]))
        return scores


class DecoderLayer(nn.Module):
    """Causal attention, then the experts, each preceded by a norm and followed by a residual."""

    def __init__(self, plan: DecoderPlan) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(plan.d_model, eps=NORM_EPSILON)
        self.attention = CausalAttention(plan)
        self.feed_forward_norm = nn.RMSNorm(plan.d_model, eps=NORM_EPSILON)
        self.feed_forward = Experts(plan) if plan.num_experts > 1 else SwiGlu(plan)

    def forward(
        self, hidden: torch.Tensor, angles: torch.Tensor, cache: LayerCache | None = None
    ) -> torch.Tensor:
        """Map (batch, seq_len, d_model) to the same shape."""
        hidden = hidden + self.attention(self.attention_norm(hidden), angles, cache)
        result: torch.Tensor = hidden + self.feed_forward(self.feed_forward_norm(hidden))
        return result


class CausalAttention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, plan: DecoderPlan) -> None:
        super().__init__()
        self.head_dim = plan.head_dim
        self.heads_per_group = plan.num_heads // plan.num_kv_heads
        self.widths = plan.d_model, plan.kv_width, plan.kv_width
        self.queries_keys_values = nn.Linear(plan.d_model, sum(self.widths), bias=False)
        self.output = nn.Linear(plan.d_model, plan.d_model, bias=False)

    def forward(
        self, hidden: torch.Tensor, angles: torch.Tensor, cache: LayerCache | None = None
    ) -> torch.Tensor:
        """Map (batch, seq_len, d_model) to the same shape, continuing after any tokens in the cache.

        If the cache already has tokens, only one token can be added at a time.
        """
        heads = self.queries_keys_values(hidden).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        # this rank's heads: each rank has a subset of the heads of every part
        groups = heads.shape[1] // (self.heads_per_group + 2)
        rotated, values = heads.split((heads.shape[1] - groups, groups), dim=1)
        queries, keys = rotate(rotated, angles).split((rotated.shape[1] - groups, groups), dim=1)
        if cache is not None:
            keys, values = cache.append(keys, values)
        if cache is not None and keys.shape[2] > queries.shape[2]:
            mixed = self._mix_behind(queries, keys, values, mask=cache.cache.mask)
        else:
            mixed = self._mix_causally(queries, keys, values)
        result: torch.Tensor = self.output(mixed.transpose(1, 2).flatten(-2))
        return result

    def _mix_causally(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        is_half = queries.element_size() == 2
        if self.heads_per_group > 1 and HAS_GROUPS and is_half and not torch.is_grad_enabled():
            return functional.scaled_dot_product_attention(
                queries, keys, values, is_causal=True, enable_gqa=True
            )
        if self.heads_per_group > 1:
            keys = keys.repeat_interleave(self.heads_per_group, dim=1)
            values = values.repeat_interleave(self.heads_per_group, dim=1)
        return functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)

    def _mix_behind(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Let one token per sequence attend to each key; input and output are (batch, heads, 1, head_dim)."""
        grouped = queries.reshape(keys.shape[0], keys.shape[1], self.heads_per_group, self.head_dim)
        mixed = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
        return mixed.reshape(queries.shape)


def rotary_angles(seq_len: int, head_dim: int) -> torch.Tensor:
    """Return (2, seq_len, head_dim): cosines and sines for each position, for both halves of a head.

    The sines for the first half are negative, as `rotate` expects.
    """
    frequencies = ROTARY_BASE ** (-torch.arange(0, head_dim, 2) / head_dim)
    angles = (torch.arange(seq_len)[:, None] * frequencies).repeat(1, 2)
    signs = torch.tensor([-1.0, 1.0]).repeat_interleave(head_dim // 2)
    return torch.stack((angles.cos(), signs * angles.sin()))


def rotate(heads: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotate each pair (i, i + head_dim / 2) in `heads` by its position's angle; keeps shape and type."""
    cosines, sines = angles
    turned = torch.addcmul(heads * cosines, heads.roll(heads.shape[-1] // 2, dims=-1), sines)
    return turned.type_as(heads)


class SwiGlu(nn.Module):
    """Two linear layers, the first gated by a third through SiLU (https://arxiv.org/abs/2002.05202)."""

    def __init__(self, plan: DecoderPlan) -> None:
        super().__init__()
        self.gate_up = nn.Linear(plan.d_model, 2 * plan.d_ff, bias=False)
        self.down = nn.Linear(plan.d_ff, plan.d_model, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map (…, d_model) to the same shape."""
        gate, up = self.gate_up(hidden).chunk(2, dim=-1)
        result: torch.Tensor = self.down(functional.silu(gate) * up)
        return result


class Experts(nn.Module):
    """A router, and the feed-forward networks from which it selects a few for each token."""

    def __init__(self, plan: DecoderPlan) -> None:
        super().__init__()
        self.num_experts_per_token = plan.num_experts_per_token
        self.router = nn.Linear(plan.d_model, plan.num_experts, bias=False)
        self.experts = nn.ModuleList(SwiGlu(plan) for _ in range(plan.num_experts))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map (batch, seq_len, d_model) to the same shape: the weighted outputs of the selected experts."""
        tokens = hidden.flatten(0, -2)
        scores, chosen = (
            self.router(tokens).softmax(dim=-1, dtype=torch.float32).topk(self.num_experts_per_token)
        )
        shares = scores / scores.sum(dim=-1, keepdim=True)
        order = chosen.flatten().argsort()
        token_of = order // self.num_experts_per_token
        # An expert without tokens runs on an empty batch, so that gradients of its weights exist on every
        # rank.
        counts = torch.bincount(chosen.flatten(), minlength=len(self.experts)).tolist()
        parts = zip(self.experts, tokens[token_of].split(counts), strict=True)
        outputs = torch.cat([expert(part) for expert, part in parts])
        weighted = (outputs * shares.flatten()[order, None]).type_as(tokens)
        return torch.zeros_like(tokens).index_add(0, token_of, weighted).view_as(hidden)
