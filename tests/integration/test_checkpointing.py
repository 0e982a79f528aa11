"""Checkpointing: the same loss and gradients from less that is kept, in blocks found by a model's shape."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from gpuproof.base import registry
from gpuproof.base.errors import UsageError
from gpuproof.records.work.training import Checkpointing
from gpuproof.worker.step.checkpointing import checkpointed, has_batch_norm, num_checkpointed, repeated_blocks
from gpuproof.workloads.info.base import WorkloadInfo

BATCH, SEQ_LEN, WIDTH, LAYERS = 2, 12, 32, 3
DECODER = {
    **{"d_model": WIDTH, "num_layers": LAYERS, "num_heads": 4, "num_kv_heads": 2, "d_ff": 48},
    **{"seq_len": SEQ_LEN, "vocab_size": 50},
}


def build(name: str, image_size: int | None = None, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    info = registry.load(registry.WORKLOADS, name)
    assert isinstance(info, WorkloadInfo)
    chosen = info.options_type(**options)
    module = info.resolve_implementation()(chosen, info.input_shape(chosen, image_size, None))
    assert isinstance(module, nn.Module)
    return module


@pytest.mark.parametrize(
    ("name", "image_size", "options", "blocks"),
    [
        ("decoder", None, DECODER, LAYERS),
        ("transformer", None, {"d_model": 32, "num_layers": 2, "num_heads": 4, "d_ff": 64}, 2),
        # Layers, and beside them in the same sequence a norm, which is no block.
        (
            "vit_b_16",
            16,
            {"d_model": 32, "num_layers": 2, "num_heads": 4, "d_ff": 64, "patch_size": 4},
            2,
        ),
        ("resnet18", 32, {}, 8),
        ("simple_cnn", None, {}, 0),
        ("medium", None, {}, 0),
    ],
)
def test_the_repeated_blocks_of_each_kind_of_model(
    name: str, image_size: int | None, options: dict[str, Any], blocks: int
) -> None:
    model = build(name, image_size, **options)
    found = repeated_blocks(model)
    assert len(found) == blocks
    assert len({type(block) for block in found}) <= 1
    assert has_batch_norm(model) == (name == "resnet18")


class Kept:
    """Bytes of the tensors that the backward pass will need, each storage counted once.

    What stands inside of a checkpoint is not seen here; its inputs, which it keeps by itself, are added.
    """

    def __init__(self, model: nn.Module) -> None:
        self.storages: dict[int, int] = {}
        self._weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        for block in repeated_blocks(model):
            block.register_forward_pre_hook(self._keep_input)

    def _keep_input(self, _module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self.keep(inputs[0])

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._weights:
            self.storages[storage.data_ptr()] = storage.nbytes()
        return tensor


def run(choice: Checkpointing) -> tuple[float, list[torch.Tensor], int]:
    """Return loss, gradients and kept bytes of one step of the decoder in training mode."""
    model = build("decoder", **DECODER)
    kept = Kept(model)
    model = checkpointed(model, choice, name="decoder")
    tokens = torch.randint(50, (BATCH, SEQ_LEN), generator=torch.Generator().manual_seed(1))
    with torch.autograd.graph.saved_tensors_hooks(kept.keep, lambda tensor: tensor):
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    num_bytes = sum(kept.storages.values())
    loss.backward()
    return loss.item(), [p.grad for p in model.parameters() if p.grad is not None], num_bytes


def test_less_is_kept_and_nothing_else_changes() -> None:
    plain_loss, plain_gradients, plain_bytes = run("none")
    kept = {}
    for choice in ("blocks", "selective", "all"):
        loss, gradients, kept[choice] = run(choice)
        assert loss == plain_loss
        assert len(gradients) == len(plain_gradients)
        assert all(map(torch.equal, gradients, plain_gradients))
    a_block = 4 * BATCH * SEQ_LEN * WIDTH
    # A decoder layer keeps far more than its input: both norms' inputs, queries, keys, values, three of the
    # feed-forward network's width 48.
    assert plain_bytes - kept["blocks"] > LAYERS * 8 * a_block


def test_dropout_is_computed_again_as_it_was() -> None:
    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8)) for _ in range(2))
    model = nn.Sequential(*blocks)
    again = checkpointed(copy.deepcopy(model), "blocks", name="dropout")
    assert num_checkpointed(again) == 2
    gradients = []
    for candidate in (model, again):
        torch.manual_seed(3)
        candidate(torch.ones(4, 8)).sum().backward()
        gradients.append([p.grad for p in candidate.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True) if a is not None and b is not None)


def test_selective_keeps_products_and_attention_and_so_computes_none_again() -> None:
    from gpuproof.worker.step.effective import watching

    products = {}
    for choice in ("none", "selective", "blocks"):
        model = checkpointed(build("decoder", **DECODER), choice, name="decoder")
        tokens = torch.zeros(BATCH, SEQ_LEN, dtype=torch.long)
        with watching() as seen:
            model(tokens).sum().backward()
        products[choice] = sum(work.calls for work in seen.record(0).work)
    assert products["selective"] == products["none"]
    # A layer has six products and one attention forward; the last one's result is not needed again.
    assert products["none"] < products["blocks"] <= products["none"] + 7 * LAYERS


def test_a_model_without_blocks_is_refused_for_blocks_and_taken_whole() -> None:
    for choice in ("blocks", "selective"):
        with pytest.raises(UsageError, match="medium has no repeated blocks"):
            checkpointed(build("medium"), choice, name="medium")
    assert num_checkpointed(checkpointed(build("medium"), "all", name="medium")) == 1
    model = build("medium")
    assert checkpointed(model, "none", name="medium") is model
