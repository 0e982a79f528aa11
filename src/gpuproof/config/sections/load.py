"""`load`: how long the twelve tests of the load suite are, and how often the machine is read beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from gpuproof.records.work.options import Limits, Options


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadConfig(Options):
    """The lengths of the load suite, which brings its own models and batch sizes (kind: load)."""

    num_epochs: Annotated[int, Limits(ge=1, le=1000)] = 3
    """Epochs of each training test; inference has one."""
    num_batches: Annotated[int, Limits(ge=1, le=100_000)] = 200
    """Batches of an epoch, a step each."""
    metrics_sample_rate_s: Annotated[float, Limits(ge=0.01, le=3600)] = 5.0
    """Longest time between two readings of devices and host; a test that may be short is read more often. The
    interval that was used is in the results."""
