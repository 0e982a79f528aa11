"""Pruning while a model learns: how much, which weights, and that they stay zero."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from gpuproof.base.errors import UsageError
from gpuproof.records.work.training import Pruned, PruningMethod, PruningSpec
from gpuproof.worker.step.pruning import Pruner, keep_highest, prunable_weights
from running import gpuproof, only_case, run_directory

SPEC = PruningSpec(method="magnitude", target_sparsity=0.7, end_step=20, every_steps=5)
INPUTS = torch.randn(16, 6, generator=torch.Generator().manual_seed(1))
TARGETS = torch.randn(16, 3, generator=torch.Generator().manual_seed(2))
OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "momentum and decay": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.1),
}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3))


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, num_steps: int) -> None:
    for _ in range(num_steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(INPUTS), TARGETS).backward()
        optimizer.step()


def zeros(model: nn.Module) -> list[torch.Tensor]:
    return [weight == 0 for weight in prunable_weights(model)]


@pytest.mark.parametrize("target", [0.1, 0.5, 0.7, 0.95])
@pytest.mark.parametrize("method", ["magnitude", "movement", "state"])
def test_the_target_is_met_to_half_a_weight(method: PruningMethod, target: float) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    spec = replace(SPEC, method=method, target_sparsity=target)
    pruner = Pruner(model, optimizer, spec, total_steps=None)
    learn(model, optimizer, 25)
    found = pruner.record(rank=0)
    assert (found.num_weights, found.num_updates) == (180, 25)
    assert found.num_masked == found.num_zero == round(target * 180)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", ["magnitude", "movement"])
def test_pruned_weights_stay_zero_and_at_each_choice_more_go(method: PruningMethod, optimizer: str) -> None:
    model = network()
    chosen = OPTIMIZERS[optimizer](model.parameters())
    pruner = Pruner(model, chosen, replace(SPEC, method=method), total_steps=None)
    shares = []
    for update in range(1, 31):
        learn(model, chosen, 1)
        found = pruner.record(rank=0)
        assert found.num_zero == found.num_masked
        if pruner.plan.chooses_at(update):
            shares.append(found.sparsity)
    assert shares == [round(0.7 * (1 - (1 - p) ** 3) * 180) / 180 for p in (0.25, 0.5, 0.75, 1)]


def test_after_the_end_the_masks_stay_and_the_rest_learns_on() -> None:
    model = network()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    pruner = Pruner(model, optimizer, SPEC, total_steps=None)
    learn(model, optimizer, 20)
    before, weight = pruner.record(rank=0), prunable_weights(model)[0].detach().clone()
    learn(model, optimizer, 20)
    assert pruner.record(rank=0).masks_sha256 == before.masks_sha256
    assert not torch.equal(prunable_weights(model)[0], weight)


def test_magnitude_prunes_the_smallest_of_all_layers_and_they_do_not_return() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    flat = torch.cat([weight.detach().abs().flatten() for weight in prunable_weights(model)])
    Pruner(model, optimizer, replace(SPEC, target_sparsity=0.5), total_steps=None)
    learn(model, optimizer, 20)
    expected = flat <= flat.sort().values[89]
    assert torch.equal(torch.cat([zero.flatten() for zero in zeros(model)]), expected)
    seen = []
    again = network()
    learning = OPTIMIZERS["momentum and decay"](again.parameters())
    Pruner(again, learning, replace(SPEC, every_steps=1), total_steps=None)
    for _ in range(20):
        learn(again, learning, 1)
        seen.append(torch.cat([zero.flatten() for zero in zeros(again)]))
    assert all(bool((later | ~earlier).all()) for earlier, later in pairwise(seen))


def test_state_keeps_weights_whose_gradients_scatter() -> None:
    weight = nn.Parameter(torch.tensor([[1.0, 1.0, 2.0, 0.5]]))
    layer = nn.Linear(4, 1, bias=False)
    layer.weight = weight
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.0, weight_decay=0.0)
    spec = replace(SPEC, method="state", target_sparsity=0.5, end_step=1)
    Pruner(layer, optimizer, spec, total_steps=None)
    weight.grad = torch.tensor([[4.0, 1.0, 1.0, 16.0]])
    optimizer.step()
    # |w|·v^(1/4) ∝ |w|·√|g|: 2, 1, 2, 2; the first of the equal ones goes, since it comes first
    assert weight.tolist() == [[0.0, 0.0, 2.0, 0.5]]


def test_movement_is_the_papers_definition_with_weights_that_return() -> None:
    """Dense weights and learnt scores, masked in the forward pass: step for step, with plain SGD for both."""
    model, plan = network(), replace(SPEC, method="movement", every_steps=1, end_step=30, schedule="linear")
    dense = [weight.detach().clone().requires_grad_() for weight in prunable_weights(model)]
    biases = [p.detach().clone().requires_grad_() for p in model.parameters() if p.dim() == 1]
    scores = [torch.zeros_like(weight, requires_grad=True) for weight in dense]
    masks = [torch.ones_like(weight) for weight in dense]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    pruner = Pruner(model, optimizer, plan, total_steps=None)
    returned = 0
    for update in range(1, 41):
        learn(model, optimizer, 1)
        first, second = (
            weight * (mask + score - score.detach())  # the mask forward, straight through to the score
            for weight, score, mask in zip(dense, scores, masks, strict=True)
        )
        hidden = torch.tanh(INPUTS @ first.T + biases[0])
        loss = nn.functional.mse_loss(hidden @ second.T + biases[1], TARGETS)
        found = torch.autograd.grad(loss, [*dense, *biases, *scores])
        with torch.no_grad():
            for learnt, gradient in zip([*dense, *biases], found[:4], strict=True):
                learnt.sub_(gradient, alpha=0.5)
            for score, gradient in zip(scores, found[4:], strict=True):
                score.sub_(gradient)
        if pruner.plan.chooses_at(update):
            num_pruned = round(pruner.plan.sparsity_after(update) * 180)
            chosen = keep_highest([score.detach() for score in scores], num_pruned=num_pruned)
            returned += sum(int((new & (old == 0)).sum()) for new, old in zip(chosen, masks, strict=True))
            masks = [mask.float() for mask in chosen]
        for weight, expected, mask in zip(prunable_weights(model), dense, masks, strict=True):
            torch.testing.assert_close(weight.detach(), expected.detach() * mask, rtol=1e-4, atol=1e-6)
    assert returned > 0


def test_of_equal_scores_exactly_so_many_go_and_the_first_ones() -> None:
    masks = keep_highest([torch.zeros(3), torch.ones(2, 2), torch.zeros(2)], num_pruned=4)
    assert [mask.flatten().tolist() for mask in masks] == [[False] * 3, [True] * 4, [False, True]]
    assert all(bool(mask.all()) for mask in keep_highest([torch.zeros(3)], num_pruned=0))


def test_embeddings_norms_and_biases_are_never_pruned_and_a_tied_layer_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.norm = nn.Embedding(7, 4), nn.LayerNorm(4)
            self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 7)
            self.again, self.head.weight = self.inner, self.embedding.weight

    model = Tied()
    assert [id(weight) for weight in prunable_weights(model)] == [id(model.inner.weight)]
    optimizer = torch.optim.SGD(model.norm.parameters())
    with pytest.raises(UsageError, match="no convolution or linear layer weights"):
        Pruner(model.norm, optimizer, SPEC, total_steps=None)


def test_ranks_prune_the_same_weights_and_the_report_says_how_much_and_what_was_learnt(
    tmp_path: Path,
) -> None:
    words = (
        *(
            "--training.pruning.target_sparsity=0.6",
            "--training.epochs=2",
            "--training.pruning.every_steps=5",
        ),
        *("--distributed.nproc=2", "--distributed.device=cpu", "--distributed.threads_per_rank=1"),
        *("--training.pruning.method=movement", "--run.run_id=r", "--monitoring.enabled=false"),
        "--verbose",
    )
    done = gpuproof("run", "pruning", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = only_case(run_directory(tmp_path, "r", "pruning")).of(Pruned)
    assert first.masks_sha256 == second.masks_sha256
    assert first.num_zero == first.num_masked == round(0.6 * 61_470) == second.num_zero
    assert first.buffers_bytes == 61_470 * (1 + 4 + 4)
    assert "sparsity" in done.stdout
    assert "accuracy" in done.stdout
    assert "movement pruning, target 60 %" in " ".join(done.stdout.split())
