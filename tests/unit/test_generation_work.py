"""What making text takes, against numbers worked out by hand for a decoder of one tiny layer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuproof.workloads.info.catalogue.decoder import (
    DECODER,
    MOE_DECODER,
    DecoderOptions,
    decode_flops,
    decoder_work,
    generation_work,
)

PLAN = DecoderOptions(
    d_model=32,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    d_ff=64,
    vocab_size=50,
    tied_embeddings=False,
).plan
WEIGHTS = 2 * 32 * 32 + 32 * 32 + 3 * 32 * 64  # queries and output, keys and values, SwiGLU
HEAD = 32 * 50


def test_a_prompt_is_read_whole_and_scored_once() -> None:
    work = generation_work(PLAN, prompt_tokens=6, new_tokens=4)
    assert work.prefill_flops == 2 * (6 * WEIGHTS + 2 * 6 * 6 * 32 + HEAD)
    # A forward pass over the same tokens scores every one of them.
    assert decoder_work(PLAN, seq_len=6).forward_flops - work.prefill_flops == 2 * 5 * HEAD


def test_a_token_attends_to_all_before_it_and_itself() -> None:
    assert decode_flops(PLAN, keys=7) == 2 * (WEIGHTS + 2 * 7 * 32 + HEAD)
    work = generation_work(PLAN, prompt_tokens=6, new_tokens=4)
    assert work.decode_flops == sum(decode_flops(PLAN, keys=keys) for keys in (7, 8, 9, 10)) / 4


def test_the_cache_is_keys_and_values_of_every_layer() -> None:
    work = generation_work(replace(PLAN, num_layers=3), prompt_tokens=6, new_tokens=4)
    assert work.cache_elements_per_token == 2 * 3 * 1 * 16
    # 7, 8, 9 and 10 tokens read, one written.
    assert work.decode_cache_elements == (8.5 + 1) * 96


def test_a_step_reads_every_weight_but_the_table_of_the_embedding() -> None:
    norms = 3 * 32
    assert generation_work(PLAN, prompt_tokens=6, new_tokens=4).decode_weights == WEIGHTS + HEAD + norms
    tied = replace(PLAN, tied_embeddings=True)
    assert generation_work(tied, prompt_tokens=6, new_tokens=4).decode_weights == WEIGHTS + HEAD + norms


def test_which_experts_are_read_depends_on_the_tokens() -> None:
    experts = replace(PLAN, num_experts=4, num_experts_per_token=2)
    work = generation_work(experts, prompt_tokens=6, new_tokens=1)
    assert work.decode_weights is None
    per_token = 3 * 1_024 + 2 * 6_144 + 4 * 32
    assert work.decode_flops == 2 * (per_token + 2 * 7 * 32 + HEAD)
    assert generation_work(
        replace(experts, num_experts_per_token=4), prompt_tokens=6, new_tokens=1
    ).decode_weights


@pytest.mark.parametrize(("name", "cache_bytes"), [("8b", 131_072), ("1.1b", 22_528), ("10m", 5_120)])
def test_presets_keep_so_many_bytes_of_a_token_in_half_precision(name: str, cache_bytes: int) -> None:
    assert DECODER.generation is not None
    assert MOE_DECODER.generation is not None
    work = DECODER.generation(DecoderOptions(preset=name), 512, 128)  # type: ignore[arg-type]
    assert 2 * work.cache_elements_per_token == cache_bytes
