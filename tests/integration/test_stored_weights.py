"""Weights in the type of the precision: what is stored, what steps compute in, and what they take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gpuproof.worker.rank.identity import RankIdentity
from gpuproof.worker.step.cuda_graph import CapturedStep
from gpuproof.worker.step.effective import observe
from gpuproof.worker.step.fp8 import FORWARD_TYPE, Fp8Linear
from gpuproof.worker.step.inference import evaluate
from gpuproof.worker.step.memory import MemoryWatch, count_parts
from gpuproof.worker.step.preparation import Prepared, prepare, setup_record
from records_by_hand import case

ALONE = RankIdentity(rank=0, world_size=1, local_rank=0, local_world_size=1)
SIZES: dict[str, Any] = {
    "d_model": 64,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "d_ff": 96,
    "vocab_size": 128,
}
PROMPT, NEW = 6, 4
MODELS: dict[str, dict[str, Any]] = {
    "decoder": {"seq_len": 12, **SIZES},
    "moe_decoder": {"seq_len": 12, **SIZES, "num_experts": 4},
}


def prepared_for(
    name: str, precision: str, *, kind: str = "inference", options: Any = None, **block: Any
) -> Prepared:
    """Prepare a small model on this processor."""
    asked = case(
        kind=kind,
        precision=precision,
        model={"name": name, "options": options or {}},
        data={"name": "synthetic", "batch_size": 2, "samples_per_epoch": 4, "image_size": 32, "file": None},
        placement={"device": "cpu"},
        training=block if kind == "training" else None,
        inference=block,
    )
    return prepare(asked, identity=ALONE, run_folder=Path())


def operands(prepared: Prepared) -> set[str]:
    """Return the types of the operands of all products of a step."""
    step = prepared.step
    assert not isinstance(step, CapturedStep)
    return {work.dtype for work in observe(step, rank=0).work}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet18", {}),
        ("vit_b_16", {"d_model": 64, "num_layers": 2, "num_heads": 4, "d_ff": 96}),
        ("transformer", {"d_model": 64, "num_layers": 2, "num_heads": 4, "d_ff": 96, "seq_len": 12}),
        ("transformers/llama", {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}),
        ("decoder", MODELS["decoder"]),
        ("moe_decoder", MODELS["moe_decoder"]),
    ],
)
@pytest.mark.parametrize(("precision", "stored"), [("bf16", torch.bfloat16), ("amp", torch.float16)])
def test_a_forward_pass_is_that_of_a_module_in_half_precision(
    name: str, options: dict[str, Any], precision: str, stored: torch.dtype
) -> None:
    lowered = prepared_for(name, precision, options=options)
    assert {p.dtype for p in lowered.workload.module.parameters()} == {stored}
    assert operands(lowered) == {str(stored).removeprefix("torch.")}
    inputs, _ = lowered.pool.next_batch()
    by_autocast = prepared_for(name, precision, options=options, weights="fp32")
    assert {p.dtype for p in by_autocast.workload.module.parameters()} == {torch.float32}
    with torch.inference_mode():
        result = lowered.workload.module(inputs)
        whole = prepared_for(name, "fp32", options=options).workload.module.eval()(inputs)
        with by_autocast.precision.autocast():
            cast = by_autocast.workload.module(inputs)
    assert result.dtype == stored
    scale = whole.norm()
    # Rounding of stored weights is of the same kind as that of autocast, which keeps residuals in fp32.
    assert (result.float() - whole).norm() / scale < max(0.02, 4 * (cast.float() - whole).norm() / scale)


@pytest.mark.parametrize(("precision", "value_bytes"), [("fp32", 4), ("bf16", 2), ("amp", 2)])
@pytest.mark.parametrize("tied", [True, False])
def test_memory_and_bytes_of_decode_are_those_of_the_tensors(
    precision: str, value_bytes: int, tied: bool
) -> None:
    prepared = prepared_for(
        "decoder",
        precision,
        options={**MODELS["decoder"], "tied_embeddings": tied},
        phase="decode",
        prompt_tokens=PROMPT,
        new_tokens=NEW,
    )
    module, setup = prepared.workload.module, setup_record(prepared)
    weights = sum(p.numel() * p.element_size() for p in module.parameters())
    memory = MemoryWatch(prepared).record(device_used_bytes=None)
    assert memory.estimate.parameters_bytes == weights == setup.num_parameters * value_bytes
    assert count_parts(module, None).parameters_bytes == weights
    # Two sequences, two layers, keys and values of two heads of 16: 7 to 10 read and one written.
    cached = 2 * 2 * 2 * 32 * (8.5 + 1) * value_bytes
    table = 0 if tied else SIZES["vocab_size"] * SIZES["d_model"] * value_bytes
    assert setup.bytes_per_step == weights - table + cached
    assert setup.options is not None
    assert (
        setup.options.weights
        == {4: "float32", 2: "bfloat16" if precision == "bf16" else "float16"}[value_bytes]
    )


@pytest.mark.parametrize("tied", [True, False])
def test_weights_in_fp8_are_quantised_once(tied: bool) -> None:
    options = {**MODELS["decoder"], "tied_embeddings": tied}
    generating: dict[str, Any] = {"phase": "decode", "prompt_tokens": PROMPT, "new_tokens": NEW}
    prepared = prepared_for("decoder", "fp8", options=options, **generating)
    layers = [layer for layer in prepared.workload.module.modules() if isinstance(layer, Fp8Linear)]
    assert len(layers) == 9
    assert {layer.weight.dtype for layer in layers} == {FORWARD_TYPE}
    assert operands(prepared) - {"bfloat16"} == {"float8_e4m3fn"}
    in_fp8 = sum(layer.weight.numel() for layer in layers)
    others = sum(p.numel() for p in prepared.workload.module.parameters() if p.dtype == torch.bfloat16)
    memory = MemoryWatch(prepared).record(device_used_bytes=None)
    assert memory.estimate.parameters_bytes == in_fp8 + 2 * others
    setup = setup_record(prepared)
    assert setup.options is not None
    assert setup.options.weights == "bfloat16 and float8_e4m3fn"
    cached = 2 * 2 * 2 * 32 * (8.5 + 1) * 2
    table = SIZES["vocab_size"] * SIZES["d_model"]  # the embedding, of which a step reads a few rows
    assert setup.bytes_per_step == in_fp8 + 2 * (others - table) + cached
    # The same products as where weights are rounded in each step.
    anew = prepared_for("decoder", "fp8", options=options, weights="fp32", **generating)
    for layer, other in zip(
        layers, (x for x in anew.workload.module.modules() if isinstance(x, Fp8Linear)), strict=True
    ):
        inputs = torch.randn(16, layer.in_features, dtype=torch.bfloat16)
        distance = (layer(inputs) - other(inputs)).float().norm() / other(inputs).float().norm()
        assert distance < 0.05


def test_training_with_stored_weights_learns_in_their_type() -> None:
    options = MODELS["decoder"]
    prepared = prepared_for(
        "decoder", "bf16", kind="training", options=options, weights="precision", optimizer="AdamW"
    )
    module = prepared.workload.module
    before = [p.detach().clone() for p in module.parameters()]
    prepared.step()
    assert {p.dtype for p in module.parameters()} == {torch.bfloat16}
    assert {p.grad.dtype for p in module.parameters() if p.grad is not None} == {torch.bfloat16}
    assert any(not torch.equal(p, was) for p, was in zip(module.parameters(), before, strict=True))
    assert isinstance(prepared.eager_step.last_loss, torch.Tensor)
    assert prepared.eager_step.last_loss.dtype == torch.float32
    watch = MemoryWatch(prepared)
    watch()
    memory = watch.record(device_used_bytes=None)
    assert memory.counted is not None
    assert memory.counted.parameters_bytes == memory.estimate.parameters_bytes
    assert memory.counted.gradients_bytes == memory.estimate.gradients_bytes
    # Adam's two moments, and a step counter of 4 bytes for each tensor.
    counters = 4 * sum(1 for _ in module.parameters())
    assert memory.counted.optimizer_bytes == memory.estimate.optimizer_bytes + counters


def test_an_evaluation_of_stored_weights_is_made_in_fp32() -> None:
    lowered = prepared_for("resnet18", "bf16")
    loss = evaluate(
        lowered.workload.module,
        pool=lowered.pool,
        loss=lowered.workload.loss,
        precision=lowered.precision,
        rank=0,
    ).mean_loss
    assert loss is not None
    assert float(torch.tensor(loss).bfloat16()) != loss  # a mean in bfloat16 has 8 bits


def test_what_has_no_weights_stays_what_it_is() -> None:
    products = prepared_for("gemm", "bf16", options={"m": 32, "n": 32, "k": 32})
    assert operands(products) == {"bfloat16"}
    passes = prepared_for("memory", "bf16", options={"buffer_bytes": 4096})
    assert passes.workload.module.target.dtype == torch.float32
