"""Launches of collectives by hand: 20 iterations of about 2 ms of each operation, on quiet GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpuproof.records.case import Case, CollectiveWork
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Device, Environment
from gpuproof.records.work.collective import CollectiveTrial, Operation
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
                *(window(rank, num_steps=60, items=60) for rank in ranks),
                *(result(rank) for rank in ranks),
            )
        ),
    )
