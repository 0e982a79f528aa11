"""Deterministic mode before torch is there: one variable, and a user's fitting choice of it stays."""

from __future__ import annotations

import pytest

from gpuproof.worker.step.determinism import set_deterministic_environment


@pytest.mark.parametrize(
    ("before", "after"),
    [(None, ":4096:8"), (":16:8", ":16:8"), (":4096:8", ":4096:8"), (":0:0", ":4096:8")],
)
def test_cublas_gets_a_deterministic_workspace(before: str | None, after: str) -> None:
    environment = {"PATH": "/bin"} if before is None else {"CUBLAS_WORKSPACE_CONFIG": before}
    set_deterministic_environment(environment)
    assert environment["CUBLAS_WORKSPACE_CONFIG"] == after
