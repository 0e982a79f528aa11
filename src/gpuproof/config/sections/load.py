"""`load`: how long the twelve tests of the load suite are, and how often the machine is read beside them."""

from __future__ import annotations

from pydantic import Field

from gpuproof.config.sections.base import ConfigSection


class LoadConfig(ConfigSection):
    """The lengths of the load suite, which brings its own models and batch sizes (kind: load)."""

    num_epochs: int = Field(default=3, ge=1, le=1000)
    """Epochs of each training test; inference has one."""
    num_batches: int = Field(default=200, ge=1, le=100_000)
    """Batches of an epoch, a step each."""
    metrics_sample_rate_s: float = Field(default=5.0, ge=0.01, le=3600)
    """Longest time between two readings of devices and host; a test that may be short is read more often. The
    interval that was used is in the results."""
