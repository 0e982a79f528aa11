"""What training is asked of pruning and of SPAM, and the record of what pruning came to.

A sparsity is the share of weights that are zero for good, of all weights that may be pruned: those of
convolutions and linear layers. An update is one change of the weights, counted from 1 in each launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from gpuproof.records.journal import record_kind
from gpuproof.records.work.options import Limits, Options

PruningMethod = Literal["none", "magnitude", "movement", "state"]
SparsityRamp = Literal["cubic", "linear"]
MAX_STEPS = 10**9
DEFAULT_END = 0.75
"""Of all updates: the last quarter is for what is left to learn around the zeros."""


def end_of_pruning(end_step: int | None, *, total_steps: int | None) -> int | None:
    """Return the update at which the target is reached; None where nobody knows how many there are."""
    if end_step is not None or total_steps is None:
        return end_step
    return round(DEFAULT_END * total_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningSpec(Options):
    """Weights of convolutions and linear layers that are set to zero while the model learns."""

    method: PruningMethod = "none"
    """Score by which weights are kept: their size (magnitude), whether they were learnt away from zero
    (movement), or their size and the second moment of their gradients (state, of AdamWPrune alone)."""
    target_sparsity: Annotated[float, Limits(gt=0, lt=1)] | None = None
    """The share of these weights that is zero in the end."""
    schedule: SparsityRamp = "cubic"
    """How sparsity rises: fast and then slowly (cubic, of Zhu and Gupta), or evenly (linear)."""
    begin_step: Annotated[int, Limits(ge=0, le=MAX_STEPS)] = 0
    """The update of the weights after which it rises; those of the warm-up count."""
    end_step: Annotated[int, Limits(ge=1, le=MAX_STEPS)] | None = None
    """The update at which the target is reached; null is three quarters of training.total_steps."""
    every_steps: Annotated[int, Limits(ge=1, le=MAX_STEPS)] = 50
    """Updates from one choice of weights to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpamSpec(Options):
    """Constants of the optimizer AdamWSpam."""

    threshold: Annotated[float, Limits(gt=0, le=1e12)] = 5000.0
    """A gradient whose square is over so many times its second moment is cut back to that."""
    reset_steps: Annotated[int, Limits(ge=1, le=MAX_STEPS)] = 500
    """Updates from one reset of both moments to the next."""
    warmup_steps: Annotated[int, Limits(ge=0, le=MAX_STEPS)] = 150
    """Updates after a reset in which the learning rate comes back."""


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
