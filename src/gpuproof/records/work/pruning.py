"""What training is asked of pruning and of SPAM, and the record of what pruning came to.

A sparsity is the share of weights that are zero for good, of all weights that may be pruned: those of
convolutions and linear layers. An update is one change of the weights, counted from 1 in each launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuproof.records.journal import record_kind

PruningMethod = Literal["none", "magnitude", "movement", "state"]
SparsityRamp = Literal["cubic", "linear"]
DEFAULT_END = 0.75
"""Of all updates: the last quarter is for what is left to learn around the zeros."""


def end_of_pruning(end_step: int | None, *, total_steps: int | None) -> int | None:
    """Return the update at which the target is reached; None where nobody knows how many there are."""
    if end_step is not None or total_steps is None:
        return end_step
    return round(DEFAULT_END * total_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningSpec:
    """Which weights go, how many, and when."""

    method: PruningMethod
    target_sparsity: float
    schedule: SparsityRamp = "cubic"
    begin_step: int = 0
    end_step: int | None = None
    """The update at which the target is reached; None is three quarters of all updates."""
    every_steps: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class SpamSpec:
    """Constants of SPAM; the defaults are its authors'."""

    threshold: float = 5000.0
    """A gradient whose square is over so many times its second moment is a spike."""
    reset_steps: int = 500
    warmup_steps: int = 150
    """Of the learning rate, after each reset."""


@record_kind("pruned")
@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What is pruned on one rank just after the window, counted in the weights themselves."""

    rank: int
    method: PruningMethod
    target_sparsity: float
    end_step: int
    """The update at which the target was to be reached."""
    num_updates: int
    """Since the launch began, those of the warm-up included."""
    num_weights: int
    """Weights that may be pruned."""
    num_zero: int
    """Those of them that are zero."""
    num_masked: int
    """Those of them that the mask holds at zero."""
    masks_sha256: str
    """Of all masks in the order of the model: ranks that average gradients have the same."""
    buffers_bytes: int
    """Masks, scores and whatever else the method keeps beside the optimizer's state."""

    @property
    def sparsity(self) -> float:
        """The share of weights that is zero."""
        return self.num_zero / self.num_weights
