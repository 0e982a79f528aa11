"""The phases of a step, which sum to the step: data, forward, backward, communication, optimizer, host gap.

Phases are timed between marks, on a device that runs ahead behind a queue that is never empty, so that none
holds a wait for the host; the **host gap** is what a step without marks takes beyond them. **Communication**
is by how much averaging gradients makes the backward pass longer, copies into buckets and back included. What
the phases sum to was measured after the window: the **residual** is the window's mean step less that sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from gpuproof.launches.communication import ALONE
from gpuproof.launches.launch import Launch
from gpuproof.launches.per_launch import first_reason
from gpuproof.records.breakdown import StepPhases

INSEPARABLE = "no step of this rank runs without communication, which is part of forward and backward"
NOT_QUEUED = (
    "the device caught up with the host even behind a full queue, so the phases include waiting for the host"
)
NOBODY_LOOKED = "no launch timed the phases of a step (profiling.breakdown)"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFigures:
    """A step by its phases, in seconds: means over ranks and launches."""

    num_launches: int
    data_s: float
    forward_s: float
    backward_s: float
    """Without the average of gradients, where that can be left out."""
    communication_s: float | None
    communication_missing: str | None
    optimizer_s: float
    host_gap_s: float
    residual_s: float
    """Mean step of the window, less the sum of the phases."""
    mark_overhead: float
    """What marks add to a step, as a share of it; no phase has it twice, and the window has none."""
    remark: str | None
    """What a reader must know of how they were timed."""

    @property
    def parts_s(self) -> dict[str, float]:
        """Each phase by its name, in the order of a step."""
        return {
            "data": self.data_s,
            "forward": self.forward_s,
            "backward": self.backward_s,
            "communication": self.communication_s or 0.0,
            "optimizer": self.optimizer_s,
            "host gap": self.host_gap_s,
        }

    @property
    def sum_s(self) -> float:
        """All phases together."""
        return sum(self.parts_s.values())


def phases_of(launches: Sequence[Launch]) -> PhaseFigures | str:
    """Return the phases of one point's launches, or why there are none."""
    figures = [_of_launch(launch) for launch in launches if _marked_phases(launch)]
    if not figures:
        reasons = [phases.missing for launch in launches for phases in launch.step_phases]
        return first_reason(reasons) or NOBODY_LOOKED
    talks = [one.communication_s for one in figures if one.communication_s is not None]
    return PhaseFigures(
        num_launches=len(figures),
        data_s=fmean(one.data_s for one in figures),
        forward_s=fmean(one.forward_s for one in figures),
        backward_s=fmean(one.backward_s for one in figures),
        communication_s=fmean(talks) if talks else None,
        communication_missing=None if talks else figures[0].communication_missing,
        optimizer_s=fmean(one.optimizer_s for one in figures),
        host_gap_s=fmean(one.host_gap_s for one in figures),
        residual_s=fmean(one.residual_s for one in figures),
        mark_overhead=fmean(one.mark_overhead for one in figures),
        remark=first_reason([one.remark for one in figures]),
    )


def _marked_phases(launch: Launch) -> list[StepPhases]:
    return [phases for phases in launch.step_phases if phases.missing is None]


def _of_launch(launch: Launch) -> PhaseFigures:
    ranks = _marked_phases(launch)
    talks = launch.world_size > 1
    is_separable = all(rank.backward_without_sync_s for rank in ranks)
    backward_s = fmean(median(rank.backward_without_sync_s or rank.backward_s) for rank in ranks)
    whole_backward_s = fmean(median(rank.backward_s) for rank in ranks)
    data_s, forward_s, optimizer_s = (
        fmean(median(getattr(rank, name)) for rank in ranks)
        for name in ("data_s", "forward_s", "optimizer_s")
    )
    phases_s = data_s + forward_s + whole_backward_s + optimizer_s
    plain_s = fmean(median(rank.plain_step_s) for rank in ranks)
    host_gap_s = max(0.0, plain_s - phases_s)
    is_filled = all(rank.is_queued or rank.clock != "device_event" for rank in ranks)
    return PhaseFigures(
        num_launches=1,
        data_s=data_s,
        forward_s=forward_s,
        backward_s=backward_s,
        communication_s=whole_backward_s - backward_s if talks and is_separable else None,
        communication_missing=ALONE if not talks else None if is_separable else INSEPARABLE,
        optimizer_s=optimizer_s,
        host_gap_s=host_gap_s,
        residual_s=launch.mean_step_s - (phases_s + host_gap_s),
        mark_overhead=fmean(median(rank.marked_step_s) for rank in ranks) / plain_s - 1,
        remark=None if is_filled else NOT_QUEUED,
    )
