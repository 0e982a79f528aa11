"""Sizes and work of the decoders against published counts and numbers worked out by hand."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gpuproof.workloads.info.base import Work
from gpuproof.workloads.info.catalogue.decoder import (
    DECODER,
    MOE_DECODER,
    MOE_PRESETS,
    PRESETS,
    DecoderOptions,
    MoeDecoderOptions,
)


def dense_work(**options: Any) -> Work:
    chosen = DecoderOptions(**options)
    work = DECODER.work(chosen, DECODER.input_shape(chosen, None, None))
    assert work is not None
    return work


def moe_work(**options: Any) -> Work:
    chosen = MoeDecoderOptions(**options)
    work = MOE_DECODER.work(chosen, MOE_DECODER.input_shape(chosen, None, None))
    assert work is not None
    return work


@pytest.mark.parametrize(
    ("preset", "parameters"),
    [
        # Layers of attention, feed-forward and two norms; the embedding, once or twice; the last norm.
        ("10m", 10 * (196_608 + 589_824 + 512) + 2_097_152 + 256),
        ("100m", 12 * (1_572_864 + 4_718_592 + 1_536) + 24_576_000 + 768),
        ("350m", 24 * (3_145_728 + 8_650_752 + 2_048) + 2 * 32_768_000 + 1_024),
        ("1.1b", 1_100_048_384),  # TinyLlama
        ("3.2b", 3_212_749_824),  # Llama 3.2 3B
        ("8b", 8_030_261_248),  # Llama 3.1 8B
    ],
)
def test_dense_presets(preset: str, parameters: int) -> None:
    work = dense_work(preset=preset)
    assert work.num_parameters == parameters
    assert work.num_active_parameters is None


def test_llama_1b_by_options_has_the_published_count() -> None:
    sizes = {"vocab_size": 128_256, "d_model": 2048, "num_layers": 16, "num_heads": 32, "num_kv_heads": 8}
    assert dense_work(**sizes, d_ff=8192, tied_embeddings=True).num_parameters == 1_235_814_400


@pytest.mark.parametrize(
    ("preset", "total", "active"),
    [
        # A layer: attention, 8 (2) experts of 393,216, the router, two norms.
        (
            "29m-a10m",
            8 * (196_608 + 8 * 393_216 + 2_048 + 512) + 2_097_152 + 256,
            8 * (196_608 + 2 * 393_216 + 2_048 + 512) + 2_097_152 + 256,
        ),
        (
            "890m-a184m",
            16 * (3_145_728 + 16 * 3_145_728 + 16_384 + 2_048) + 32_768_000 + 1_024,
            16 * (3_145_728 + 2 * 3_145_728 + 16_384 + 2_048) + 32_768_000 + 1_024,
        ),
        # OLMoE 1B-7B has 6,919,161,856, of which 2 · 16 · 2,048 are norms of queries and keys.
        ("6.9b-a1.3b", 6_919_161_856 - 65_536, 6_919_161_856 - 65_536 - 16 * 56 * 6_291_456),
    ],
)
def test_presets_with_experts(preset: str, total: int, active: int) -> None:
    work = moe_work(preset=preset)
    assert (work.num_parameters, work.num_active_parameters) == (total, active)


def test_mixtral_by_options_has_the_published_count() -> None:
    sizes = {"vocab_size": 32_000, "d_model": 4096, "num_layers": 32, "num_heads": 32, "num_kv_heads": 8}
    experts = {"d_ff": 14_336, "num_experts": 8, "num_experts_per_token": 2, "tied_embeddings": False}
    work = moe_work(**sizes, **experts)
    assert work.num_parameters == 46_702_792_704
    assert work.num_active_parameters == 46_702_792_704 - 32 * 6 * 3 * 4096 * 14_336


def test_the_name_of_a_preset_is_its_size_within_two_percent() -> None:
    unit = {"m": 1e6, "b": 1e9}
    for work_of, presets in ((dense_work, PRESETS), (moe_work, MOE_PRESETS)):
        for preset in presets:
            work = work_of(preset=preset)
            said = [float(number) * unit[of] for number, of in re.findall(r"([\d.]+)([mb])", preset)]
            counted = [work.num_parameters, work.num_active_parameters]
            assert said == pytest.approx([count for count in counted if count is not None], rel=0.02)


def test_dense_flops_by_hand() -> None:
    tiny = {"vocab_size": 50, "d_model": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "d_ff": 48}
    work = dense_work(**tiny, seq_len=16)
    # Queries and output 32 · 32 each, keys and values 32 · 16 each, feed-forward 3 · 32 · 48; the head.
    weights = 2 * (2 * 1_024 + 2 * 512 + 4_608) + 32 * 50
    attention = 2 * (2 * 16 * 16 * 32)
    assert work.forward_flops == 2 * (16 * weights + attention)
    assert work.training_flops == 3 * work.forward_flops


def test_a_token_costs_its_own_experts_only() -> None:
    tiny = {"vocab_size": 50, "d_model": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "d_ff": 48}
    dense = dense_work(**tiny, seq_len=16)
    work = moe_work(**tiny, seq_len=16, num_experts=8, num_experts_per_token=3)
    experts_and_router = 2 * 16 * (2 * 4_608 + 32 * 8)
    assert work.forward_flops == dense.forward_flops + 2 * experts_and_router


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 5}, "d_model 256 is not divisible into 5 heads of even width"),
        ({"d_model": 36}, "d_model 36 is not divisible into 4 heads of even width"),
        ({"num_kv_heads": 5}, "4 heads cannot evenly share 5 key-value heads"),
        ({"seq_len": 0}, "seq_len is 0, but must be 1 or more"),
    ],
)
def test_sizes_that_make_no_decoder_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        DecoderOptions(**options)


@pytest.mark.parametrize(
    ("num_experts", "per_token"), [(1, 1), (4, 5)], ids=["no choice", "more than there are"]
)
def test_a_choice_of_experts_needs_enough_of_them(num_experts: int, per_token: int) -> None:
    with pytest.raises(ValueError, match=f"a token uses {per_token} of {num_experts} experts"):
        MoeDecoderOptions(num_experts=num_experts, num_experts_per_token=per_token)
