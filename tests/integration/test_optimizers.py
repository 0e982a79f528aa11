"""Optimizers in each implementation: what is asked for runs, seen from the operations, and updates alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.worker.step.optimizers import default_implementation, make_optimizer, read_implementation
from records_by_hand import TRAINING

SPEC = replace(TRAINING, learning_rate=0.1, weight_decay=0.01, momentum=0.9)


class Names(TorchDispatchMode):
    """The names of all operations that run inside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(func._schema.name)
        return func(*args, **(kwargs or {}))


def updated(optimizer: str, implementation: str) -> tuple[torch.Tensor, str]:
    """Return a weight after two updates, and the implementation that the operations speak of."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    made = make_optimizer(
        [list(model.parameters())],
        replace(SPEC, optimizer=optimizer, optimizer_implementation=implementation),  # type: ignore[arg-type]
    )
    for _ in range(2):
        made.zero_grad()
        model(torch.ones(2, 4)).square().sum().backward()
        with Names() as names:
            made.step()
    # Fused Adam counts its steps by a foreach operation, so the more telling word comes first.
    seen = [word for word in ("fused", "foreach") if any(f"_{word}_" in name for name in names.seen)]
    assert read_implementation(made) == next(iter(seen), "for_loop")
    return model.weight.detach(), read_implementation(made)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW"])
def test_each_implementation_runs_and_updates_alike(optimizer: str) -> None:
    reference, ran = updated(optimizer, "for_loop")
    assert ran == "for_loop"
    for implementation in ("foreach", "fused"):
        weight, ran = updated(optimizer, implementation)
        assert ran == implementation
        torch.testing.assert_close(weight, reference)


def test_adamw_decays_weights_and_adam_their_gradients() -> None:
    assert not torch.equal(updated("Adam", "for_loop")[0], updated("AdamW", "for_loop")[0])


def test_auto_is_what_torch_would_choose_and_is_named() -> None:
    _, ran = updated("SGD", "auto")
    assert ran == default_implementation(list(nn.Linear(4, 3).parameters())) == "for_loop"


def test_an_implementation_that_torch_lacks_is_refused() -> None:
    whole = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    with pytest.raises(
        EnvironmentUnfitError, match=r"torch has no fused optimizer for parameters of torch\.complex64 on cpu"
    ):
        make_optimizer([[whole]], replace(SPEC, optimizer="Adam", optimizer_implementation="fused"))


def test_a_graph_needs_the_count_of_steps_on_the_device() -> None:
    weights = [[nn.Parameter(torch.ones(3))]]
    adam = make_optimizer(weights, replace(SPEC, optimizer="Adam"), capturable=True)
    assert adam.defaults["capturable"] is True
    make_optimizer(weights, SPEC, capturable=True)  # SGD counts none
