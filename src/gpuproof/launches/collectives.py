"""How fast did all ranks communicate? Time and bandwidths per operation and size.

In: the trials of every rank in a launch. Bandwidths are defined as in nccl-tests
(https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md): algorithm bandwidth is size over time;
bus bandwidth is algorithm bandwidth times a factor that depends on the number of ranks, which makes it
comparable with the link speed for any number of ranks. For a single rank the factors are 0, and there is no
bus bandwidth.
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
    """Return the ratio of bus to algorithm bandwidth; None for one rank, where no data moves.

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
    """One operation at one size in one launch."""

    operation: Operation
    asked_bytes: int
    size_bytes: int
    num_elements: int
    num_ranks: int
    rank_times_s: tuple[float, ...]
    """Mean time per iteration on each rank, in rank order."""
    iterations_s: tuple[float, ...]
    """For each iteration, the time on the slowest rank."""
    num_checked: int
    num_wrong: int
    wrong_ranks: tuple[int, ...]
    not_checked: str | None

    @property
    def time_s(self) -> float:
        """Mean over the iterations and over the ranks, as in nccl-tests."""
        return fmean(self.rank_times_s)

    @property
    def algorithm_bytes_per_s(self) -> float:
        """Size over time."""
        return throughput(self.size_bytes, self.time_s)

    @property
    def bus_bytes_per_s(self) -> float | None:
        """Algorithm bandwidth converted to the bandwidth of the links."""
        factor = bus_factor(self.operation, self.num_ranks)
        return None if factor is None else factor * self.algorithm_bytes_per_s

    @property
    def rank_spread(self) -> float:
        """Mean time of the slowest rank divided by the fastest rank's, minus 1."""
        return max(self.rank_times_s) / min(self.rank_times_s) - 1

    @property
    def is_symmetric(self) -> bool:
        """Whether every rank does the same work, so that their times should be similar."""
        return self.operation not in ROOTED and self.operation != "all_to_all_v"

    def latency(self, q: float) -> Percentile:
        """Return a percentile of the iteration times if there are enough iterations."""
        return percentile(self.iterations_s, q)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveLaunch:
    """A launch that measured collectives."""

    launch: Launch
    figures: tuple[CollectiveValues, ...]
    """Results in the order in which they were measured."""
    left_out: tuple[str, ...]
    """Sizes that are too small for one element per rank."""
    not_measured: tuple[str, ...]
    """Requested operations for which no size has times from every rank."""
    num_gpus_seen: int | None
    """Number of GPUs that torch sees on the first host; None if it was not queried."""


def summarize_collectives(records: CaseRecords) -> CollectiveLaunch | None:
    """Return a launch's results; None if it did not finish normally or timed nothing."""
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
    """Explain why a rank compared nothing; for operations with a root, only some ranks can compare."""
    is_symmetric = trial.operation not in ROOTED and trial.operation != "all_to_all_v"
    silent = f"rank {trial.rank} compared nothing and does not report why"
    return trial.not_checked or (silent if is_symmetric and not trial.num_checked else None)
