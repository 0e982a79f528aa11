"""Cases for the benchmarks, created as in `gpuproof run`: from recipe and settings to case."""

from __future__ import annotations

from gpuproof.config.load import load_config
from gpuproof.records.case import Case
from gpuproof.suites.cases import build_case

SMALL = (
    "--data.name=synthetic",
    "--distributed.device=cpu",
    "--distributed.threads_per_rank=1",
    "--run.repeats=1",
)
"""Overrides for the quick recipe: nothing to prepare, one thread, one launch."""


def small_case(model: str, *settings: str) -> Case:
    """Return the single case of the quick recipe with `SMALL`, a model and additional settings."""
    config = load_config("quick", [*SMALL, f"--model.name={model}", *settings]).config
    return build_case(config, 0)
