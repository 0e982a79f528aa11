"""Do several devices learn what one does? Losses, norms of gradients and weights, held against limits.

The limits are those of the requirement: losses apart by under 0.01, norms of gradients that correlate by over
0.95, weights apart by under 1e-4. What is said is the worst of all ranks and launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np

from gpuproof.launches.launch import Launch
from gpuproof.launches.per_launch import first_reason
from gpuproof.records.breakdown import TrainedAlike

MOST_LOSS, LEAST_CORRELATION, MOST_WEIGHT = 0.01, 0.95, 1e-4
MOST_NORM = 0.05
"""Relative difference of a norm of gradients."""
NOTHING_LEARNT = "all gradients were zero, so that there is nothing to compare"
STEADY = 1e-6
"""Relative spread of norms of gradients under which a correlation is one of roundings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alikeness:
    """The worst of all ranks and launches of a point."""

    num_steps: int
    loss_difference: float
    norm_correlation: float | None
    """None where the norms hardly change from step to step."""
    norm_difference: float
    """The largest relative difference of a norm of gradients."""
    weight_difference: float

    @property
    def is_alike(self) -> bool:
        """Whether nothing is beyond its limit. Norms twice as large correlate too, so they must be near."""
        correlates = self.norm_correlation is None or self.norm_correlation > LEAST_CORRELATION
        is_near = self.loss_difference < MOST_LOSS and self.weight_difference < MOST_WEIGHT
        return is_near and correlates and self.norm_difference < MOST_NORM


def alikeness_of(launches: Sequence[Launch]) -> Alikeness | str | None:
    """Return what the launches of a point say, why they say nothing, or None where nobody looked."""
    records = [record for launch in launches for record in launch.trained_alike]
    complete = [record for record in records if record.missing is None]
    if complete and not any(max(record.gradient_norm_alone) for record in complete):
        return NOTHING_LEARNT
    alikenesses = [_of_rank(record) for record in complete]
    if not alikenesses:
        return first_reason([record.missing for record in records])
    correlations = [one.norm_correlation for one in alikenesses if one.norm_correlation is not None]
    return Alikeness(
        num_steps=min(one.num_steps for one in alikenesses),
        loss_difference=max(one.loss_difference for one in alikenesses),
        norm_correlation=min(correlations) if correlations else None,
        norm_difference=max(one.norm_difference for one in alikenesses),
        weight_difference=max(one.weight_difference for one in alikenesses),
    )


def _of_rank(record: TrainedAlike) -> Alikeness:
    together, alone = np.array(record.gradient_norm_together), np.array(record.gradient_norm_alone)
    losses = np.abs(np.array(record.loss_together) - np.array(record.loss_alone))
    is_steady = min(np.ptp(together), np.ptp(alone)) <= STEADY * max(np.max(alone), STEADY)
    return Alikeness(
        num_steps=len(losses),
        loss_difference=_or_infinite(np.max(losses)),
        norm_correlation=None if is_steady else _or_infinite(np.corrcoef(together, alone)[0, 1], bad=-1.0),
        norm_difference=_or_infinite(np.max(np.abs(together - alone)) / max(np.max(alone), 1e-12)),
        weight_difference=_or_infinite(record.largest_weight_difference or 0.0),
    )


def _or_infinite(value: float, *, bad: float = 1e308) -> float:
    """Return a number that JSON has: what is no number is the worst."""
    return float(value) if isfinite(value) else bad
