"""A row in the table of the load suite, as a person reads it."""

from __future__ import annotations

from dataclasses import dataclass

from gpuproof.analysis.validity import Validity


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRow:
    """One test of the load suite."""

    name: str
    description: str
    success: bool | None
    """None where it was not run."""
    samples_per_s: float | None
    mean_step_s: float | None
    p95_step_s: float | None
    peak_allocated_bytes: int | None
    """By the framework's own allocator; None on a processor."""
    cpu_percent: float | None
    """Mean over the window, of the whole host."""
    gpu_percent: float | None
    validity: Validity | None
    outcome: str
    """Why there are no figures; empty where there are."""
