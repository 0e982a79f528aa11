"""How much of a step is communication? Three answers to three questions, which are never mixed into one.

`sync_difference`: by how much averaging gradients makes a step longer, less the same difference in a group of
one, whose code is the same and which talks to nobody. `exposed` and `overlapped`: how long collectives ran on
the device beside which nothing was, and something was, computed. `standalone`: what all-reduces of the same
buckets take, one after another, with nothing beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from gpuproof.launches.collectives import bus_factor
from gpuproof.launches.launch import Launch, throughput
from gpuproof.launches.per_launch import LaunchFigure, figure_of, first_reason
from gpuproof.records.breakdown import BucketAllReduce, CollectiveOverlap, GradientSync, SyncRound

ALONE = "one device communicates with no other"
NOT_BEHIND = (
    "the device caught up with the host, so the times of stand-alone all-reduces would include waiting "
    "for the host"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCommunication:
    """The communication of a step, measured in three ways. Means over ranks, in seconds a step."""

    sync_difference: LaunchFigure
    exposed: LaunchFigure
    overlapped: LaunchFigure
    standalone: LaunchFigure
    bucket_bytes: tuple[int, ...]
    kernels: tuple[str, ...]
    """Names of the collectives' kernels, where the device's list of work shows any."""
    bus_bytes_per_s: float | None
    """Of the stand-alone all-reduces together."""


def communication_of(launches: Sequence[Launch]) -> StepCommunication:
    """Return the communication of one point's launches."""
    alone = ALONE if all(launch.num_devices == 1 for launch in launches) else None
    standalone = _figure(launches, standalone_s, _reason_of("bucket_all_reduce"), alone)
    buckets = [record.bucket_bytes for launch in launches for record in launch.bucket_all_reduce]
    sizes = buckets[0] if buckets else ()
    overlap_reason = _reason_of("collective_overlap")
    return StepCommunication(
        sync_difference=_figure(launches, sync_difference_s, _reason_of("gradient_sync"), alone),
        exposed=_figure(launches, exposed_s, overlap_reason, alone),
        overlapped=_figure(launches, overlapped_s, overlap_reason, alone),
        standalone=standalone,
        bucket_bytes=sizes,
        kernels=tuple(
            sorted({name for launch in launches for o in launch.collective_overlap for name in o.kernels})
        ),
        bus_bytes_per_s=_bus(sizes, standalone.mean_s, launches[0].num_devices if launches else 1),
    )


def _figure(
    launches: Sequence[Launch],
    value: Callable[[Launch], float | None],
    reason: Callable[[Launch], str | None],
    alone: str | None,
) -> LaunchFigure:
    return figure_of(map(value, launches), missing=alone or first_reason([*map(reason, launches)]))


def _reason_of(kind: str) -> Callable[[Launch], str | None]:
    return lambda launch: first_reason([_reason(record) for record in getattr(launch, kind)])


def _reason(record: BucketAllReduce | CollectiveOverlap | GradientSync) -> str | None:
    if isinstance(record, BucketAllReduce) and not record.is_queued:
        return NOT_BEHIND
    return record.missing


def sync_difference_s(launch: Launch) -> float | None:
    """Return by how much averaging gradients makes a step longer, corrected by a group of one."""
    ranks = [median(map(_corrected, sync.rounds)) for sync in launch.gradient_sync if sync.rounds]
    return fmean(ranks) if ranks else None


def _corrected(sync_round: SyncRound) -> float:
    together = median(sync_round.with_sync_s) - median(sync_round.without_sync_s)
    return together - (median(sync_round.alone_with_sync_s) - median(sync_round.alone_without_sync_s))


def _overlaps(launch: Launch) -> list[CollectiveOverlap]:
    return [o for o in launch.collective_overlap if o.num_steps and not o.missing]


def exposed_s(launch: Launch) -> float | None:
    """Return how long collectives ran in a step with nothing computed beside them."""
    ranks = [o.exposed_s / o.num_steps for o in _overlaps(launch)]
    return fmean(ranks) if ranks else None


def overlapped_s(launch: Launch) -> float | None:
    """Return how long they ran beside computing."""
    ranks = [(o.collective_s - o.exposed_s) / o.num_steps for o in _overlaps(launch)]
    return fmean(ranks) if ranks else None


def standalone_s(launch: Launch) -> float | None:
    """Return what all buckets take one after another."""
    buckets = [record for record in launch.bucket_all_reduce if record.durations_s]
    if not buckets or not all(record.is_queued for record in buckets):
        return None
    return fmean(map(_all_buckets, buckets))


def _all_buckets(record: BucketAllReduce) -> float:
    return sum(map(median, record.durations_s))


def _bus(sizes: Sequence[int], seconds: float | None, num_ranks: int) -> float | None:
    factor = bus_factor("all_reduce", num_ranks)
    if not sizes or not seconds or factor is None:
        return None
    return factor * throughput(sum(sizes), seconds)
