"""Where does a training step's time go? Phases, and communication measured in three ways.

The phases (data, forward, backward, communication, optimizer, host gap) add up to the step. They are timed
between markers on a device whose queue never runs empty, so none of them includes waiting for the host. The
**host gap** is the extra time that a step takes without markers. **Communication** is how much longer the
backward pass takes because gradients are averaged, including copies into buckets and back. The phases are
measured after the window: the **residual** is the window's mean step minus their sum.

There are three answers to the question of how much of a step is communication, and they are never combined
into one. `sync_difference`: how much longer a step is because gradients are averaged, minus the same
difference in a group of one, which runs the same code without communicating. `exposed` and `overlapped`: how
long collectives ran on the device without and with concurrent compute. `standalone`: how long all-reduces of
the same buckets take one after another, with nothing else running. Each is an `AcrossLaunches`: a value per
launch, their mean, and the range expected for another launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from gpuproof.launches.collectives import bus_factor
from gpuproof.launches.launch import Launch, throughput
from gpuproof.records.breakdown import BucketAllReduce, CollectiveOverlap, GradientSync, StepPhases, SyncRound
from gpuproof.statistics.estimate import Interval
from gpuproof.statistics.launches import interval_of_launches

INSEPARABLE = "no step of this rank runs without communication, which is part of forward and backward"
NOT_QUEUED = "the device caught up with the host despite a full queue, so phases include waiting for the host"
ALONE = "a single device does not communicate"
NOT_BEHIND = (
    "the device caught up with the host, so the times of stand-alone all-reduces would include waiting "
    "for the host"
)
LOST = "values of the step breakdown were lost"
NOBODY_LOOKED = "no launch timed the phases of a step (profiling.breakdown)"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseValues:
    """The phases of a step, in seconds, as means over ranks and launches."""

    num_launches: int
    data_s: float
    forward_s: float
    backward_s: float
    """Backward pass without averaging gradients, if averaging can be skipped."""
    communication_s: float | None
    communication_missing: str | None
    optimizer_s: float
    host_gap_s: float
    residual_s: float
    """Mean step time in the window minus the sum of the phases."""
    mark_overhead: float
    """Time that markers add to a step, as a fraction of the step; no phase includes it twice, and the window
    excludes it."""
    remark: str | None
    """Caveats about how the phases were timed."""

    @property
    def parts_s(self) -> dict[str, float]:
        """Return each phase by name, in the order they occur in a step."""
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
        """The sum of all phases."""
        return sum(self.parts_s.values())


def phases_of(launches: Sequence[Launch]) -> PhaseValues | str:
    """Return the phases for the launches of one point, or why there are none."""
    figures = [_of_launch(launch) for launch in launches if _marked_phases(launch)]
    if not figures:
        reasons = [phases.missing or LOST for launch in launches for phases in launch.step_phases]
        return first_reason(reasons) or NOBODY_LOOKED
    talks = [one.communication_s for one in figures if one.communication_s is not None]
    return PhaseValues(
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
    """Return the ranks' phases, without those that lost a value."""
    return [phases for phases in launch.step_phases if phases.missing is None and _is_whole(phases)]


def _is_whole(rank: StepPhases) -> bool:
    parts = (rank.data_s, rank.forward_s, rank.backward_s, rank.optimizer_s)
    return all((*parts, rank.plain_step_s, rank.marked_step_s)) and median(rank.plain_step_s) > 0


def _of_launch(launch: Launch) -> PhaseValues:
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
    return PhaseValues(
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCommunication:
    """The communication of a step, measured in three ways, as means over ranks in seconds per step."""

    sync_difference: AcrossLaunches
    exposed: AcrossLaunches
    overlapped: AcrossLaunches
    standalone: AcrossLaunches
    bucket_bytes: tuple[int, ...]
    kernels: tuple[str, ...]
    """Names of the collective kernels, if the device trace contains any."""
    bus_bytes_per_s: float | None
    """Combined bandwidth of all stand-alone all-reduces."""


def communication_of(launches: Sequence[Launch]) -> StepCommunication:
    """Return the communication measures for the launches of one point."""
    alone = ALONE if all(launch.num_devices == 1 for launch in launches) else None
    standalone = _value(launches, standalone_s, _reason_of("bucket_all_reduce"), alone)
    buckets = [record.bucket_bytes for launch in launches for record in launch.bucket_all_reduce]
    sizes = buckets[0] if buckets else ()
    overlap_reason = _reason_of("collective_overlap")
    return StepCommunication(
        sync_difference=_value(launches, sync_difference_s, _reason_of("gradient_sync"), alone),
        exposed=_value(launches, exposed_s, overlap_reason, alone),
        overlapped=_value(launches, overlapped_s, overlap_reason, alone),
        standalone=standalone,
        bucket_bytes=sizes,
        kernels=tuple(
            sorted({name for launch in launches for o in launch.collective_overlap for name in o.kernels})
        ),
        bus_bytes_per_s=_bus(sizes, standalone.mean_s, launches[0].num_devices if launches else 1),
    )


def _value(
    launches: Sequence[Launch],
    value: Callable[[Launch], float | None],
    reason: Callable[[Launch], str | None],
    alone: str | None,
) -> AcrossLaunches:
    return across_launches(map(value, launches), missing=alone or first_reason([*map(reason, launches)]))


def _reason_of(kind: str) -> Callable[[Launch], str | None]:
    return lambda launch: first_reason([_reason(record) for record in getattr(launch, kind)])


def _reason(record: BucketAllReduce | CollectiveOverlap | GradientSync) -> str | None:
    if isinstance(record, BucketAllReduce) and not record.is_queued:
        return NOT_BEHIND
    return record.missing


def sync_difference_s(launch: Launch) -> float | None:
    """Return how much longer a step takes with gradient averaging, minus the same in a group of one."""
    of_ranks = [list(filter(_is_complete, sync.rounds)) for sync in launch.gradient_sync]
    ranks = [median(map(_corrected, rounds)) for rounds in of_ranks if rounds]
    return fmean(ranks) if ranks else None


def _is_complete(one: SyncRound) -> bool:
    return all((one.with_sync_s, one.without_sync_s, one.alone_with_sync_s, one.alone_without_sync_s))


def _corrected(sync_round: SyncRound) -> float:
    together = median(sync_round.with_sync_s) - median(sync_round.without_sync_s)
    return together - (median(sync_round.alone_with_sync_s) - median(sync_round.alone_without_sync_s))


def _overlaps(launch: Launch) -> list[CollectiveOverlap]:
    return [o for o in launch.collective_overlap if o.num_steps and not o.missing]


def exposed_s(launch: Launch) -> float | None:
    """Return how long collectives ran in a step while no compute was running."""
    ranks = [o.exposed_s / o.num_steps for o in _overlaps(launch)]
    return fmean(ranks) if ranks else None


def overlapped_s(launch: Launch) -> float | None:
    """Return how long collectives ran in a step while compute was also running."""
    ranks = [(o.collective_s - o.exposed_s) / o.num_steps for o in _overlaps(launch)]
    return fmean(ranks) if ranks else None


def standalone_s(launch: Launch) -> float | None:
    """Return the total time of the all-reduces of all buckets, run one after another."""
    buckets = [x for x in launch.bucket_all_reduce if x.durations_s and all(x.durations_s)]
    if not buckets or not all(record.is_queued for record in buckets):
        return None
    return fmean(sum(map(median, record.durations_s)) for record in buckets)


def _bus(sizes: Sequence[int], seconds: float | None, num_ranks: int) -> float | None:
    factor = bus_factor("all_reduce", num_ranks)
    if not sizes or not seconds or factor is None:
        return None
    return factor * throughput(sum(sizes), seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcrossLaunches:
    """One value per launch, in seconds."""

    values_s: tuple[float, ...]
    interval: Interval | None
    missing: str | None
    """Why there is no value, or no interval."""

    @property
    def mean_s(self) -> float | None:
        """Mean over the launches; None if no launch has a value."""
        return fmean(self.values_s) if self.values_s else None


def across_launches(values_s: Iterable[float | None], *, missing: str | None = None) -> AcrossLaunches:
    """Return the combined result of launches that have a value; `missing` is the reason if none do.

    >>> across_launches([0.010, 0.012]).mean_s
    0.011
    """
    measured_s = tuple(value for value in values_s if value is not None)
    if not measured_s:
        return AcrossLaunches(values_s=(), interval=None, missing=missing or "not measured in any launch")
    interval = interval_of_launches(measured_s)
    if isinstance(interval, Interval):
        return AcrossLaunches(values_s=measured_s, interval=interval, missing=None)
    return AcrossLaunches(values_s=measured_s, interval=None, missing=interval.reason)


def first_reason(reasons: Sequence[str | None]) -> str | None:
    """Return the first reason given."""
    return next((reason for reason in reasons if reason), None)
