"""Deterministic mode: one variable, of which a user's fitting choice stays, and a switch of torch's."""

from __future__ import annotations

from typing import cast

import pytest
import torch

from gpuproof.accelerators.base import Accelerator
from gpuproof.worker.step.determinism import choose_algorithms, set_deterministic_environment


@pytest.mark.parametrize(
    ("before", "after"),
    [(None, ":4096:8"), (":16:8", ":16:8"), (":4096:8", ":4096:8"), (":0:0", ":4096:8")],
)
def test_cublas_gets_a_deterministic_workspace(before: str | None, after: str) -> None:
    environment = {"PATH": "/bin"} if before is None else {"CUBLAS_WORKSPACE_CONFIG": before}
    set_deterministic_environment(environment)
    assert environment["CUBLAS_WORKSPACE_CONFIG"] == after


class OfProcessors:
    """Stands for an accelerator without convolutions of its own."""

    def choose_convolutions(self, **_: bool) -> None:
        pass


def test_torchs_switch_is_touched_only_to_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It imports torch's compiler, which takes as long as torch itself, and no other launch needs that."""
    chosen = [False]
    monkeypatch.setattr(torch, "use_deterministic_algorithms", chosen.append)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: chosen[-1])
    here = cast("Accelerator", OfProcessors())
    for deterministic in (False, True, True, False):
        choose_algorithms(here, deterministic=deterministic, cudnn_benchmark=False)
    assert chosen == [False, True, False]
