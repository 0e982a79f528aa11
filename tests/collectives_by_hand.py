"""Launches of collectives by hand: 20 iterations of about 2 ms of each operation, on quiet GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpuproof.records.case import Case, CollectiveWork
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Device, Environment, Window
from gpuproof.records.work.collective import CollectiveTrial, Operation
from gpuproof.records.work.probe import ProbeReading
from records_by_hand import H200, of_own_launch, result, setup, start, window

MIB = 2**20
ITERATION_S = 0.002


def trial(rank: int, operation: Operation, **changes: Any) -> CollectiveTrial:
    """One operation of 4 MiB on one rank."""
    times = tuple(ITERATION_S * (1 + (0.001 if i % 2 else -0.001)) for i in range(20))
    whole = CollectiveTrial(
        rank=rank,
        operation=operation,
        asked_bytes=4 * MIB,
        size_bytes=4 * MIB,
        num_elements=MIB,
        durations_s=times,
        num_checked=MIB,
        num_wrong=0,
    )
    return replace(whole, **changes)


def collective_records(
    case: Case, trials: Sequence[CollectiveTrial] = (), *, device: Device = H200
) -> CaseRecords:
    """A launch that ended well: of every operation that was asked for, unless `trials` are given."""
    assert isinstance(case.work, CollectiveWork)
    ranks = range(case.placement.num_ranks)
    told = trials or [trial(rank, name) for name in case.work.collective.operations for rank in ranks]
    return CaseRecords(
        case=case,
        records=of_own_launch(
            (
                *(start(rank, world_size=len(ranks)) for rank in ranks),
                Environment(host="node1", facts={"devices": [{}] * len(ranks)}),
                *(setup(rank, device=device, item="operations", precision="float32") for rank in ranks),
                *told,
                *(window_of_repeats(rank, told) for rank in ranks),
                *(result(rank) for rank in ranks),
            )
        ),
    )


def counted_again(launch: CaseRecords) -> CaseRecords:
    """The launch with windows that count the repeats as they are listed now."""
    trials = launch.of(CollectiveTrial)
    records = (window_of_repeats(x.rank, trials) if isinstance(x, Window) else x for x in launch.records)
    return replace(launch, records=of_own_launch(tuple(records)))


def window_of_repeats(
    rank: int, trials: Sequence[CollectiveTrial | ProbeReading], *, num_untimed: int = 20
) -> Window:
    """The window of a rank, which counts the repeats that are listed, or those of which no time was taken."""
    times_s = [time_s for trial in trials if trial.rank == rank for time_s in trial.durations_s]
    count = len(times_s) or num_untimed
    return window(rank, num_steps=count, items=count, steps_s=sum(times_s))
