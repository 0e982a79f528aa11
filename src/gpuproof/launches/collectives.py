"""How fast did all ranks talk? Time, algorithm bandwidth and bus bandwidth of each operation and size.

In: the trials of every rank of a launch. Bandwidths are those of nccl-tests
(https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md): algorithm bandwidth is size over time;
bus bandwidth is that times a factor of the number of ranks, so that it can be held against the speed of the
links whatever that number is. Over one rank the factors are 0, and there is no bus bandwidth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from gpuproof.base.groups import grouped
from gpuproof.launches.launch import Launch, summarize_launch, throughput
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Environment
from gpuproof.records.work.collective import ROOTED, CollectiveTrial, Operation
from gpuproof.statistics.percentiles import Percentile, percentile


def bus_factor(operation: Operation, num_ranks: int) -> float | None:
    """Return bus bandwidth over algorithm bandwidth; None where one rank is alone and nothing moves.

    >>> bus_factor("all_reduce", 8), bus_factor("all_gather", 8), bus_factor("broadcast", 8)
    (1.75, 0.875, 1.0)
    """
    if num_ranks < 2:
        return None
    part = (num_ranks - 1) / num_ranks
    if operation == "all_reduce":
        return 2 * part
    return 1.0 if operation in ("broadcast", "reduce", "send_recv") else part


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveValues:
    """One operation at one size, in one launch."""

    operation: Operation
    asked_bytes: int
    size_bytes: int
    num_elements: int
    num_ranks: int
    rank_times_s: tuple[float, ...]
    """Mean time of an iteration on each rank, in the order of ranks."""
    iterations_s: tuple[float, ...]
    """Of each iteration, that of the rank which took longest."""
    num_checked: int
    num_wrong: int
    wrong_ranks: tuple[int, ...]
    not_checked: str | None

    @property
    def time_s(self) -> float:
        """Mean over the iterations and over the ranks, as nccl-tests has it."""
        return fmean(self.rank_times_s)

    @property
    def algorithm_bytes_per_s(self) -> float:
        """Size over time."""
        return throughput(self.size_bytes, self.time_s)

    @property
    def bus_bytes_per_s(self) -> float | None:
        """Algorithm bandwidth in terms of the links."""
        factor = bus_factor(self.operation, self.num_ranks)
        return None if factor is None else factor * self.algorithm_bytes_per_s

    @property
    def rank_spread(self) -> float:
        """The slowest rank's mean time over the fastest one's, less 1."""
        return max(self.rank_times_s) / min(self.rank_times_s) - 1

    @property
    def is_symmetric(self) -> bool:
        """Whether every rank does the same, so that their times should be alike."""
        return self.operation not in ROOTED and self.operation != "all_to_all_v"

    def latency(self, q: float) -> Percentile:
        """Give a percentile of the iterations, only with enough of them."""
        return percentile(self.iterations_s, q)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveLaunch:
    """A launch that measured collectives."""

    launch: Launch
    figures: tuple[CollectiveValues, ...]
    """In the order in which they were measured."""
    left_out: tuple[str, ...]
    """Sizes that hold no element of every rank."""
    not_measured: tuple[str, ...]
    """Operations that were asked for, and of which no size has the times of every rank."""
    num_gpus_seen: int | None
    """GPUs that torch sees on the first host; None where it was not asked."""


def summarize_collectives(records: CaseRecords) -> CollectiveLaunch | None:
    """Return a launch's figures; None where it did not end well or timed nothing."""
    launch, trials = summarize_launch(records), records.of(CollectiveTrial)
    if launch is None:
        return None
    by_point = grouped(((trial.operation, trial.asked_bytes), trial) for trial in trials)
    whole = [
        point
        for point in by_point.values()
        if sorted(trial.rank for trial in point) == list(range(launch.world_size))
        and all(trial.durations_s for trial in point)
        and len({len(trial.durations_s) for trial in point}) == 1
    ]
    measured = {point[0].operation for point in whole}
    empty = [point[0] for point in by_point.values() if not point[0].num_elements]
    devices = next((environment.facts.get("devices") for environment in records.of(Environment)), None)
    return CollectiveLaunch(
        launch=launch,
        figures=tuple(_values(point) for point in whole),
        left_out=tuple(f"{trial.operation}: {trial.not_checked}" for trial in empty),
        not_measured=tuple(
            name for name in dict.fromkeys(t.operation for t in trials) if name not in measured
        ),
        num_gpus_seen=None if devices is None else len(devices),
    )


def _values(trials: Sequence[CollectiveTrial]) -> CollectiveValues:
    by_rank = sorted(trials, key=lambda trial: trial.rank)
    first = by_rank[0]
    return CollectiveValues(
        operation=first.operation,
        asked_bytes=first.asked_bytes,
        size_bytes=first.size_bytes,
        num_elements=first.num_elements,
        num_ranks=len(by_rank),
        rank_times_s=tuple(fmean(trial.durations_s) for trial in by_rank),
        iterations_s=tuple(map(max, zip(*(trial.durations_s for trial in by_rank), strict=True))),
        num_checked=sum(trial.num_checked for trial in by_rank),
        num_wrong=sum(trial.num_wrong for trial in by_rank),
        wrong_ranks=tuple(trial.rank for trial in by_rank if trial.num_wrong),
        not_checked=next(filter(None, map(_reason_not_checked, by_rank)), None),
    )


def _reason_not_checked(trial: CollectiveTrial) -> str | None:
    """Say why a rank compared nothing; where there is a root, only some have something to compare."""
    is_symmetric = trial.operation not in ROOTED and trial.operation != "all_to_all_v"
    silent = f"rank {trial.rank} compared nothing and does not say why"
    return trial.not_checked or (silent if is_symmetric and not trial.num_checked else None)
