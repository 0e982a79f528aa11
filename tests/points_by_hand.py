"""Points of sweeps and searches from records written by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import FailureCause, Start
from records_by_hand import case, failure, one_rank, start, steady_times, with_work


def at(point: str, records: CaseRecords, *, forked: bool = False, batch: int | None = None) -> CaseRecords:
    data = (
        records.case.model_work.data
        if batch is None
        else replace(records.case.model_work.data, batch_size=batch)
    )
    begun: Any = {"start": "fork" if forked else "exec"}
    told = tuple(replace(x, **begun) if isinstance(x, Start) else x for x in records.records)
    return replace(records, case=with_work(replace(records.case, case_id=point), data=data), records=told)


def failed(point: str, cause: FailureCause, *, batch: int | None = None) -> CaseRecords:
    return at(point, CaseRecords(case=case(), records=(start(), failure(cause))), batch=batch)


def ladder(*, slower: float = 1.0) -> list[CaseRecords]:
    """Batches 16, 32, 64, 96 at steps of 10, 15, 29 and 44 ms, `slower` times; 128 and 112 do not fit."""
    steps_s = {16: 0.010, 32: 0.015, 64: 0.029, 96: 0.044}
    fit = []
    for batch, step_s in steps_s.items():
        told = one_rank(times_s=steady_times(100, step_s * slower), items=100 * batch).records()
        built = tuple(
            replace(record, items_per_step=batch) if hasattr(record, "items_per_step") else record
            for record in told.records
        )
        fit.append(at(f"batch_size={batch}", replace(told, records=built), batch=batch))
    return [*fit, *(failed(f"batch_size={b}", "out_of_memory", batch=b) for b in (128, 112))]
