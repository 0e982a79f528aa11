"""What a run says of its memory and time before it begins, against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gpuproof.base import units
from gpuproof.config.load import load_config
from gpuproof.records.case import Case
from gpuproof.suites.base import THIS_MACHINE, Remaining
from gpuproof.suites.cases import build_case
from gpuproof.suites.forecast import forecast
from gpuproof.suites.registry import suite_on
from gpuproof.workloads.info.base import InputShape
from gpuproof.workloads.info.catalogue.decoder import DecoderOptions, decoder_activation_values
from gpuproof.workloads.info.catalogue.resnet import RESNET_PLANS, resnet_activation_values
from gpuproof.workloads.torch.cnn import ResNet
from gpuproof.workloads.torch.decoder import build_decoder

SYNTHETIC = Path(__file__).resolve().parents[2] / "configs" / "synthetic_resnet50.yaml"
GIB = 2**30


def foreseen(
    *cases: Case, num: int = 0, at_once: int | None = 1, memory_bytes: int | None = None
) -> tuple[str, ...]:
    remaining = Remaining(num_launches=num or len(cases))
    return forecast(remaining, cases, hosts_at_once=at_once, host_memory_bytes=memory_bytes)


def case_of(config: str | Path, *words: str) -> Case:
    return build_case(load_config(str(config), words).config, 0)


def kept_bytes(model: nn.Module, batch: torch.Tensor, loss: Callable[[torch.Tensor], torch.Tensor]) -> int:
    """Return the bytes that a forward pass leaves for the backward pass, those of scores among them."""
    own = {t.untyped_storage().data_ptr() for t in (batch, *model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        scores = model(batch)
        assert loss(scores).requires_grad
    keep(scores)
    return sum(kept.values())


def test_the_residual_network_keeps_what_is_foreseen_and_its_statistics() -> None:
    model = ResNet(RESNET_PLANS["resnet50"], num_classes=10)
    kept = kept_bytes(model, torch.randn(2, 3, 64, 64), lambda scores: scores)
    foreseen = 2 * 4 * resnet_activation_values(RESNET_PLANS["resnet50"], image_size=64)
    assert 0.97 < foreseen / kept <= 1.0


@pytest.mark.parametrize(
    ("options", "share"),
    [
        (DecoderOptions(seq_len=64), 0.92),
        (
            DecoderOptions(seq_len=32, d_model=64, num_layers=3, num_kv_heads=4, d_ff=128, vocab_size=500),
            0.86,
        ),
        (DecoderOptions(seq_len=128, d_model=128, num_layers=5, d_ff=512, vocab_size=100), 0.91),
    ],
)
def test_a_decoder_keeps_what_is_foreseen_and_little_more(options: DecoderOptions, share: float) -> None:
    shape = InputShape(kind="tokens", shape=(options.seq_len,), num_targets=options.plan.vocab_size)
    tokens = torch.zeros((3, options.seq_len), dtype=torch.long)
    model = build_decoder(options, shape)
    kept = kept_bytes(model, tokens, lambda s: cross_entropy(s.flatten(0, 1), tokens.flatten()))
    foreseen = 3 * 4 * decoder_activation_values(options.plan, seq_len=options.seq_len)
    assert share < foreseen / kept <= 1.0


def test_a_decoder_says_its_activations_and_experts_do_not() -> None:
    words = ("--model.name={}", "--data.name=synthetic", "--training.precision=fp32", "--data.batch_size=2")
    dense, experts = (
        foreseen(case_of("quick", words[0].format(name), *words[1:]))[1]
        for name in ("decoder", "moe_decoder")
    )
    # 2 sequences of 2048 tokens of 10 × (8 × 256 + 4 × 768) + 2 × 256 + 2 × 8192 values of 4 bytes
    assert dense.endswith(f"activations {units.memory(2 * 2048 * 69_376 * 4)})")
    assert experts.endswith("activations not included)")


def test_a_machine_that_is_too_small_is_told_the_key_that_makes_it_fit() -> None:
    case = case_of(SYNTHETIC, "--training.precision=fp32")
    time, memory, too_much = foreseen(case, memory_bytes=16 * GIB)
    assert time == "time: not known until a step has been timed; 1 launch of 2,100 steps each"
    # 25,557,032 parameters of 4 bytes, their momentum, and 256 samples of 21,325,824 values.
    assert memory == (
        "memory: at least 20.5 GiB per rank (parameters 97.5 MiB, gradients 97.5 MiB, optimizer 97.5 MiB, "
        "activations 20.3 GiB)"
    )
    said = "in this machine's memory: it needs 20.5 GiB or more, over 16.0 GiB; try --data.batch_size=64"
    assert too_much.endswith(said)
    (half,) = foreseen(case_of(SYNTHETIC), memory_bytes=16 * GIB)[2:]
    assert half.endswith("it needs 10.4 GiB or more, over half of 16.0 GiB; try --data.batch_size=128")
    fits = case_of(SYNTHETIC, "--training.precision=fp32", "--data.batch_size=64")
    assert len(foreseen(fits, memory_bytes=16 * GIB)) == 2


def test_what_is_not_known_is_said_and_windows_by_time_add_up() -> None:
    plain = case_of("quick", "--model.name=medium", "--data.name=synthetic")
    time, memory = foreseen(plain, plain, plain, memory_bytes=GIB)
    assert time.startswith(
        "time: at least 12 s for 3 launches; each launch also needs its start-up and a warm-up of "
    )
    assert memory.endswith("activations not included)")
    many, _ = foreseen(plain, plain, plain, num=600)
    assert many.startswith("time: at least 40 min for 600 launches; ")  # 5 s each, of which 3 were looked at
    two = case_of("quick", "--model.name=medium", "--data.name=synthetic", "--distributed.nproc=2")
    assert foreseen(two)[0].endswith("and steps of each rank alone (benchmark.own_compute)")
    compiled = case_of(SYNTHETIC, "--training.compile.enabled=true", "--training.precision=fp32")
    assert "activations not included" in foreseen(compiled)[1]


def test_hosts_share_launches_and_a_queue_is_waited_for() -> None:
    plain = case_of("quick", "--model.name=medium", "--data.name=synthetic")
    on_two = replace(plain, placement=replace(plain.placement, num_hosts=2))
    # Windows of 4 s: 10 launches over two hosts, and 3 that take both.
    assert foreseen(plain, plain, num=10, at_once=2)[0].startswith("time: at least 20 s for 10 launches; ")
    assert foreseen(on_two, on_two, num=3, at_once=2)[0].startswith("time: at least 12 s for 3 launches; ")
    queued = foreseen(plain, num=5, at_once=None)[0]
    assert queued.startswith(
        "time: at least 4 s in each of 5 launches, plus the wait in the queue; each launch also "
    )


def test_launches_that_may_be_more_are_not_said_to_be_all() -> None:
    quick = load_config("quick").config
    suite = suite_on(quick, THIS_MACHINE)
    remaining = suite.remaining(suite.begin(quick, THIS_MACHINE))
    (time, *_) = forecast(remaining, [build_case(quick, 0)] * 5, hosts_at_once=1)
    assert time.startswith(
        "time: at least 20 s for 5 launches or more, until ±3 % or 60 s; each launch also needs "
    )


@pytest.mark.parametrize(
    ("words", "until"),
    [
        (("quick", "--run.target_precision=null"), None),
        (("quick", "--run.repeats=3"), None),
        (("quick", "--run.target_precision=0.005", "--run.target_time_s=600"), "±0.5 % or 10 min"),
        (
            ("quick", "--search.kind=batch_size", "--data.name=synthetic"),
            "the largest batch that fits is found",
        ),
        (("serving",), "the highest rate that meets the bound is found"),
        (("serving", "--serving.rate_per_s=5"), None),
        (("quick", "--suite=ab"), "a regression of 3 % would be found (60 pairs at most)"),
        (("quick", "--matrix.data.batch_size=[1, 2]"), None),
    ],
)
def test_what_decides_about_further_launches_is_said(words: tuple[str, ...], until: str | None) -> None:
    config = load_config(words[0], words[1:]).config
    suite = suite_on(config, THIS_MACHINE)
    assert suite.remaining(suite.begin(config, THIS_MACHINE)).until == until


def test_what_was_set_aside_is_told_and_an_estimate_is_left_to_the_scheduler() -> None:
    several = Remaining(num_launches=12, seconds=720.0, basis="plan")
    assert forecast(several, (), hosts_at_once=1) == (
        "time: 36 s to 12 min on an idle machine for 12 launches, and for the tests that follow",
    )
    one = Remaining(num_launches=1, seconds=90.0, basis="plan")
    assert " for 1 launch, and" in forecast(one, (), hosts_at_once=1)[0]
    assert forecast(Remaining(num_launches=3, seconds=90.0), (), hosts_at_once=1) == ()
