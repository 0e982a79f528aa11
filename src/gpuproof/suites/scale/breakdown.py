"""Break down each point beyond throughput: communication, phases, memory, step time distribution.

This module also checks whether training on several devices matches training on one: losses, gradient norms
and weights are compared, with the limits from the requirement (losses less than 0.01 apart, gradient norms
correlated above 0.95, weights less than 1e-4 apart). The result is the worst over all ranks and launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np

from gpuproof.launches.communication import (
    LOST,
    PhaseValues,
    StepCommunication,
    communication_of,
    first_reason,
    phases_of,
)
from gpuproof.launches.launch import Launch
from gpuproof.records.breakdown import TrainingAgreement
from gpuproof.records.what_ran import MemoryParts
from gpuproof.suites.scale.plan import Law, ScalePoint

NUM_QUANTILES = 101
WAYS = (
    ("sync_difference", "communication: step with gradient averaging minus step without"),
    ("exposed", "communication: collectives with no concurrent computation"),
    ("overlapped", "communication: collectives with concurrent computation"),
    ("standalone", "communication: all-reduces of the gradient buckets alone"),
)
"""Communication measures by field, each with the part of a step that it describes."""
MOST_LOSS, LEAST_CORRELATION, MOST_WEIGHT = 0.01, 0.95, 1e-4
MOST_NORM = 0.05
"""Largest allowed relative difference between gradient norms."""
NOTHING_LEARNT = "all gradients were zero, so there is nothing to compare"
STEADY = 1e-6
"""Relative spread of norms below which a correlation only reflects rounding errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryHeld:
    """Memory of the rank that uses the most, in bytes, as computed from sizes and as measured."""

    estimate: MemoryParts
    counted: MemoryParts | None
    """Memory occupied by the actual tensors."""
    activations_bytes: int | None
    activations_missing: str | None
    peak_bytes: int | None
    """The allocator's peak in the window; None if the device has no such counter."""
    device_bytes: int | None = None
    """Memory of the rank's device; None if unknown."""

    @property
    def expected_bytes(self) -> int:
        """Sum of all parts, including known activations."""
        return self.estimate.total_bytes + (self.activations_bytes or 0)

    @property
    def device_share(self) -> float | None:
        """Expected memory, or the measured memory if that is higher, divided by the device's memory."""
        if not self.device_bytes:
            return None
        return max(self.expected_bytes, self.peak_bytes or 0) / self.device_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PointBreakdown:
    """The breakdown of one point."""

    case_id: str
    batch_size: int
    num_devices: int
    law: Law | None
    communication: StepCommunication
    phases: PhaseValues | None
    phases_missing: str | None
    memory: MemoryHeld | None
    step_quantiles_s: tuple[float, ...]
    """Quantiles of the step times of all launches: minimum, each percentile, maximum; empty without step
    times."""
    alike: Agreement | None = None
    """Agreement between the results on several devices and on one; None if not compared."""
    alike_missing: str | None = None


def break_down(point: ScalePoint, launches: Sequence[Launch]) -> PointBreakdown:
    """Return the breakdown from a point's launches."""
    phases, alike = phases_of(launches), agreement_of(launches)
    return PointBreakdown(
        case_id=point.case_id,
        batch_size=point.batch_size,
        num_devices=point.num_devices,
        law=point.law,
        communication=communication_of(launches),
        phases=None if isinstance(phases, str) else phases,
        phases_missing=phases if isinstance(phases, str) else None,
        memory=_memory(launches),
        step_quantiles_s=_quantiles(launches),
        alike=alike if isinstance(alike, Agreement) else None,
        alike_missing=alike if isinstance(alike, str) else None,
    )


def _memory(launches: Sequence[Launch]) -> MemoryHeld | None:
    held = [
        MemoryHeld(
            estimate=memory.estimate,
            counted=memory.counted,
            activations_bytes=memory.activations_bytes,
            activations_missing=memory.activations_missing,
            peak_bytes=next(
                window.peak_allocated_bytes for window in launch.windows if window.rank == memory.rank
            ),
            device_bytes=next(
                setup.device.memory_total_bytes for setup in launch.setups if setup.rank == memory.rank
            ),
        )
        for launch in launches
        for memory in launch.memory
    ]
    return max(held, key=lambda one: (one.peak_bytes or 0, one.expected_bytes), default=None)


def _quantiles(launches: Sequence[Launch]) -> tuple[float, ...]:
    times = [time_s for launch in launches for time_s in launch.step_times_s]
    return tuple(map(float, np.quantile(times, np.linspace(0, 1, NUM_QUANTILES)))) if times else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The worst values over all ranks and launches of a point, compared with one device."""

    num_steps: int
    loss_difference: float
    norm_correlation: float | None
    """Correlation of the gradient norms; None if the norms hardly change from step to step."""
    norm_difference: float
    """The largest relative difference between gradient norms."""
    weight_difference: float

    @property
    def is_alike(self) -> bool:
        """Whether everything is within its limit; norms must also be close, since doubled norms correlate."""
        correlates = self.norm_correlation is None or self.norm_correlation > LEAST_CORRELATION
        is_near = self.loss_difference < MOST_LOSS and self.weight_difference < MOST_WEIGHT
        return is_near and correlates and self.norm_difference < MOST_NORM


def agreement_of(launches: Sequence[Launch]) -> Agreement | str | None:
    """Return the agreement from a point's launches, or why it is missing; None if not checked.

    If a rank's values were lost, only a disagreement of the others is certain.
    """
    records = [record for launch in launches for record in launch.trained_alike]
    told = [record for record in records if record.missing is None]
    complete = list(filter(_is_whole, told))
    is_lost = len(complete) < len(told) or any(
        0 < len(launch.trained_alike) < launch.world_size for launch in launches
    )
    if complete and not any(max(record.gradient_norm_alone) for record in complete):
        return NOTHING_LEARNT
    alikenesses = [_of_rank(record) for record in complete]
    if not alikenesses:
        return first_reason([record.missing for record in records]) or (LOST if is_lost else None)
    correlations = [one.norm_correlation for one in alikenesses if one.norm_correlation is not None]
    agreement = Agreement(
        num_steps=min(one.num_steps for one in alikenesses),
        loss_difference=max(one.loss_difference for one in alikenesses),
        norm_correlation=min(correlations) if correlations else None,
        norm_difference=max(one.norm_difference for one in alikenesses),
        weight_difference=max(one.weight_difference for one in alikenesses),
    )
    return LOST if is_lost and agreement.is_alike else agreement


def _is_whole(record: TrainingAgreement) -> bool:
    """Report whether a rank has losses and norms of all steps for both sides, and the weights' difference."""
    sides = (record.loss_together, record.loss_alone)
    norms = (record.gradient_norm_together, record.gradient_norm_alone)
    lengths = {len(values) for values in (*sides, *norms)}
    return len(lengths) == 1 and min(lengths) > 0 and record.largest_weight_difference is not None


def _of_rank(record: TrainingAgreement) -> Agreement:
    assert record.largest_weight_difference is not None
    together, alone = np.array(record.gradient_norm_together), np.array(record.gradient_norm_alone)
    losses = np.abs(np.array(record.loss_together) - np.array(record.loss_alone))
    is_steady = min(np.ptp(together), np.ptp(alone)) <= STEADY * max(np.max(alone), STEADY)
    return Agreement(
        num_steps=len(losses),
        loss_difference=_or_infinite(np.max(losses)),
        norm_correlation=None if is_steady else _or_infinite(np.corrcoef(together, alone)[0, 1], bad=-1.0),
        norm_difference=_or_infinite(np.max(np.abs(together - alone)) / max(np.max(alone), 1e-12)),
        weight_difference=_or_infinite(record.largest_weight_difference),
    )


def _or_infinite(value: float, *, bad: float = 1e308) -> float:
    """Return a number that JSON can represent: non-finite numbers are replaced by the worst value."""
    return float(value) if isfinite(value) else bad
