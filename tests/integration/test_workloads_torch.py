"""The torch modules are what the torch-free catalogue says: parameters, operations and shapes, exactly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from gpuproof.base import registry
from gpuproof.workloads.info.base import InputShape, WorkloadInfo
from gpuproof.workloads.info.catalogue.decoder import MoeDecoderOptions
from gpuproof.workloads.info.catalogue.encoder import TransformerOptions

TINY_ENCODER = {"d_model": 32, "num_layers": 2, "num_heads": 4, "d_ff": 64}
TINY_DECODER = {
    **{"d_model": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "d_ff": 48},
    **{"seq_len": 12, "vocab_size": 50},
}
BATCH = 2

Built = tuple[WorkloadInfo, Any, InputShape, nn.Module]


def build(name: str, image_size: int | None = None, num_classes: int | None = None, **options: Any) -> Built:
    torch.manual_seed(0)
    info = registry.load(registry.WORKLOADS, name)
    assert isinstance(info, WorkloadInfo)
    chosen = info.options_type(**options)
    shape = info.input_shape(chosen, image_size, num_classes)
    return info, chosen, shape, info.resolve_implementation()(chosen, shape)


def batch_of(shape: InputShape) -> torch.Tensor:
    if shape.kind == "tokens":
        return torch.randint(shape.num_targets, (BATCH, *shape.shape))
    return torch.randn(BATCH, *shape.shape)


@pytest.mark.parametrize(
    ("name", "image_size", "num_classes", "options"),
    [
        ("medium", None, None, {}),
        ("large", None, None, {}),
        ("simple_cnn", None, None, {}),
        ("simple_cnn", 45, 7, {}),
        ("lenet5", None, None, {}),
        ("lenet5", 29, 100, {"channels": 3}),
        ("resnet", None, None, {}),
        ("resnet18", 64, 10, {}),
        ("resnet18", 75, 1000, {}),
        ("resnet50", 64, 1000, {}),
        ("vit_b_16", 64, 7, TINY_ENCODER),
        ("vit_b_16", 16, 7, {**TINY_ENCODER, "patch_size": 4}),
        ("transformer", None, None, {**TINY_ENCODER, "seq_len": 12, "vocab_size": 50}),
        ("gpt2", None, None, {**TINY_ENCODER, "seq_len": 12, "vocab_size": 50}),
        ("decoder", None, None, TINY_DECODER),
        ("decoder", None, None, {**TINY_DECODER, "tied_embeddings": False, "num_kv_heads": 4}),
        ("moe_decoder", None, None, {**TINY_DECODER, "num_experts": 4}),
        ("moe_decoder", None, None, {**TINY_DECODER, "num_experts": 64, "num_experts_per_token": 1}),
    ],
)
def test_closed_forms_agree_with_torch(
    name: str, image_size: int | None, num_classes: int | None, options: dict[str, Any]
) -> None:
    info, chosen, shape, module = build(name, image_size, num_classes, **options)
    work = info.work(chosen, shape)
    assert work is not None
    assert sum(p.numel() for p in module.parameters()) == work.num_parameters

    # The plain kernel: torch's counter knows no other of the CPU's.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        output = module(batch_of(shape))
        assert counter.get_total_flops() == BATCH * work.forward_flops
        output.sum().backward()
    positions = shape.shape if shape.kind == "tokens" else ()
    assert output.shape == (BATCH, *positions, shape.num_targets)
    assert counter.get_total_flops() == BATCH * work.training_flops
    assert all(parameter.grad is not None for parameter in module.parameters())


@pytest.mark.parametrize("name", ["vit_b_16", "transformer", "decoder", "moe_decoder"])
def test_half_precision_takes_every_gradient_and_warns_of_nothing(name: str) -> None:
    options = TINY_DECODER if name.endswith("decoder") else TINY_ENCODER
    _, _, shape, module = build(name, 32 if name == "vit_b_16" else None, **options)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = module(batch_of(shape))
    assert output.dtype == torch.bfloat16
    output.float().square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in module.parameters())


@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_layer_computes_what_torchs_own_does(norm_first: bool) -> None:
    from gpuproof.workloads.torch.encoder import EncoderLayer

    torch.manual_seed(0)
    sizes = TransformerOptions(d_model=32, num_heads=4, d_ff=64)
    ours = EncoderLayer(sizes, norm_first=norm_first, activation=nn.ReLU(), dropout=0.0)
    theirs = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=norm_first)
    # Both hold the same tensors in the same order but for the norms, which torch keeps last.
    attention, feed_forward = list(ours.attention.parameters()), list(ours.feed_forward.parameters())
    norms = [*ours.attention_norm.parameters(), *ours.feed_forward_norm.parameters()]
    for mine, other in zip([*attention, *feed_forward, *norms], theirs.parameters(), strict=True):
        other.data.copy_(mine.data)
    hidden = torch.randn(2, 5, 32)
    torch.testing.assert_close(ours(hidden), theirs(hidden))


@pytest.mark.parametrize("name", ["decoder", "moe_decoder"])
def test_a_decoder_never_looks_ahead(name: str) -> None:
    _, _, shape, module = build(name, **TINY_DECODER)
    tokens = batch_of(shape)
    changed = tokens.clone()
    changed[:, 7] = (changed[:, 7] + 1) % shape.num_targets
    with torch.no_grad():
        difference = (module(tokens) - module(changed)).abs().amax(dim=(0, 2))
    torch.testing.assert_close(difference[:7], torch.zeros(7), atol=1e-6, rtol=0)
    assert difference[7:].min() > 1e-6


def test_rotary_positions_keep_lengths_and_know_distances_only() -> None:
    from gpuproof.workloads.torch.decoder import rotary_angles, rotate

    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 8)
    angles = rotary_angles(10, 8)
    queries, keys = (rotate(vector.expand(10, 8), angles) for vector in (query, key))
    torch.testing.assert_close(queries.norm(dim=-1), query.norm().expand(10))
    scores = queries @ keys.T
    for distance in range(-9, 10):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert not torch.allclose(scores.diagonal(0)[0], scores.diagonal(1)[0])


def test_experts_give_the_weighted_sum_of_those_that_score_highest() -> None:
    from gpuproof.workloads.torch.decoder import Experts

    torch.manual_seed(0)
    plan = MoeDecoderOptions(d_model=16, num_heads=2, num_kv_heads=2, d_ff=8, num_experts=5).plan
    module = Experts(plan)
    tokens = torch.randn(3, 4, 16)
    with torch.no_grad():
        outputs = torch.stack([expert(tokens) for expert in module.experts], dim=-1)
        scores = module.router(tokens)
        kept = scores.masked_fill(scores < scores.sort(dim=-1).values[..., -2:-1], -torch.inf)
        expected = (outputs * kept.softmax(dim=-1)[..., None, :]).sum(dim=-1)
        torch.testing.assert_close(module(tokens), expected)


@pytest.mark.parametrize("name", ["transformer", "decoder", "moe_decoder"])
def test_first_scores_of_a_language_model_are_those_of_guessing(name: str) -> None:
    from gpuproof.worker.step.model import token_cross_entropy

    sizes = {**TINY_ENCODER, "seq_len": 12, "vocab_size": 50}
    _, _, shape, module = build(name, **(sizes if name == "transformer" else TINY_DECODER))
    with torch.no_grad():
        loss = token_cross_entropy(module(batch_of(shape)), batch_of(shape))
    assert float(loss) == pytest.approx(float(torch.tensor(50.0).log()), rel=0.02)


def test_gpt2_sees_no_token_that_comes_later_and_its_head_is_its_embedding() -> None:
    _, _, shape, module = build("gpt2", **TINY_ENCODER, seq_len=12, vocab_size=50)
    tokens = batch_of(shape)
    changed = tokens.clone()
    changed[:, 7] = (changed[:, 7] + 1) % 50
    before, after = module(tokens), module(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])
    assert sum(parameter.shape == (50, 32) for parameter in module.parameters()) == 1
