"""How the built-in workloads are split across ranks that work on the same samples.

A pair of linear layers is split by the columns of the first and the rows of the second. Everything between
them then needs no data from other ranks, and the outputs of the second layer are summed over the ranks
(Shoeybi et al. 2019, https://arxiv.org/abs/1909.08053). In attention, this splits the heads; in the
feed-forward network, the hidden units. The embeddings and last layer of language models are split by
vocabulary, and the scores are gathered.

Each function prepares a module for groups of `size` ranks and returns the parallel styles of its parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
)

from gpuproof.workloads.torch.decoder import Decoder, DecoderLayer, Experts, SwiGlu
from gpuproof.workloads.torch.encoder import EncoderLayer, SelfAttention, TokenEncoder, VisionTransformer

Plan = dict[str, ParallelStyle]


def perceptron_plan(module: nn.Sequential, _size: int) -> Plan:
    """Split linear layers in pairs; a last layer without a partner is not split."""
    linear = [name for name, layer in module.named_children() if isinstance(layer, nn.Linear)]
    plan: Plan = {}
    for first, second in list(pairwise(linear))[::2]:
        plan |= {first: ColwiseParallel(), second: RowwiseParallel()}
    return plan


def decoder_plan(module: Decoder, size: int) -> Plan:
    """Split heads, feed-forward networks or experts, and the vocabulary; norms and routers are not split."""
    plan = _vocabulary("embedding", "head")
    for name, layer in module.layers.named_children():
        assert isinstance(layer, DecoderLayer)
        plan |= _decoder_layer(f"layers.{name}", layer, size)
    return plan


def _decoder_layer(name: str, layer: DecoderLayer, size: int) -> Plan:
    regroup_shares(layer.attention.queries_keys_values, widths=layer.attention.widths, size=size)
    attention, feed_forward = f"{name}.attention", f"{name}.feed_forward"
    plan: Plan = {
        # Sums the input gradients of both matmuls once, instead of once for each.
        attention: PrepareModuleInput(
            input_layouts=(Replicate(), None, None),  # the layer's inputs: hidden states, angles, cache
            desired_input_layouts=(Replicate(), None, None),
        ),
        f"{attention}.queries_keys_values": ColwiseParallel(),
        f"{attention}.output": RowwiseParallel(),
    }
    if isinstance(layer.feed_forward, Experts):
        for number in range(len(layer.feed_forward.experts)):
            plan |= _swi_glu(f"{feed_forward}.experts.{number}", layer.feed_forward.experts[number], size)
    else:
        plan |= _swi_glu(feed_forward, layer.feed_forward, size)
    return plan


def _swi_glu(name: str, network: nn.Module, size: int) -> Plan:
    assert isinstance(network, SwiGlu)
    width = network.gate_up.out_features // 2
    regroup_shares(network.gate_up, widths=(width, width), size=size)
    return {
        name: PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),)),
        f"{name}.gate_up": ColwiseParallel(),
        f"{name}.down": RowwiseParallel(),
    }


def encoder_plan(module: TokenEncoder | VisionTransformer, size: int) -> Plan:
    """Split heads, feed-forward networks and any vocabulary; norms stay whole."""
    plan = _vocabulary("embedding", "classifier") if isinstance(module, TokenEncoder) else {}
    for name, layer in module.layers.named_children():
        if not isinstance(layer, EncoderLayer):
            continue
        attention = layer.attention[0]
        assert isinstance(attention, SelfAttention)
        layer_width = attention.queries_keys_values.out_features // 3
        regroup_shares(attention.queries_keys_values, widths=(layer_width,) * 3, size=size)
        attention.num_heads //= size
        plan |= {
            f"layers.{name}.attention.0.queries_keys_values": ColwiseParallel(),
            f"layers.{name}.attention.0.output": RowwiseParallel(),
            f"layers.{name}.feed_forward.0": ColwiseParallel(),
            f"layers.{name}.feed_forward.3": RowwiseParallel(),
        }
    return plan


def _vocabulary(embedding: str, head: str) -> Plan:
    return {
        embedding: RowwiseParallel(input_layouts=Replicate()),
        head: ColwiseParallel(output_layouts=Replicate()),
    }


@torch.no_grad()
def regroup_shares(layer: nn.Linear, *, widths: Sequence[int], size: int) -> None:
    """Reorder the outputs of a layer that computes several parts of these widths, e.g. keys, then values.

    When the outputs are then split into `size` equal pieces, each piece contains an equal portion of every
    part, in the order of the parts. Without reordering, one rank would get all keys and another all values.
    """
    for parameter in (layer.weight, layer.bias):
        if parameter is not None:
            parts = [part.unflatten(0, (size, -1)) for part in parameter.split(tuple(widths))]
            parameter.copy_(torch.cat(parts, dim=1).flatten(0, 1))
