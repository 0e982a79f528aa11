"""The traced steps of a run: the summary of the first launch's trace, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuproof.analysis.communication import CommunicationTimes, communication_times
from gpuproof.analysis.profile import ProfileSummary
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import ProfileTrace
from gpuproof.report.trace_file import summarize_trace_file
from gpuproof.store.run import RunDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """What a trace says; outside every figure of the run."""

    summary: ProfileSummary | None
    communication: CommunicationTimes | None
    missing: str | None
    """Why there is no summary."""


def profiled(run: RunDirectory, cases: Sequence[CaseRecords]) -> Profiled | None:
    """Sum up the trace of the first launch that has one; None where nothing was traced."""
    for records in cases:
        for trace in records.of(ProfileTrace):
            path = run.case_folder(records.case) / trace.file
            found = (
                summarize_trace_file(path, steps=trace.steps) if path.is_file() else f"{trace.file} is gone"
            )
            if isinstance(found, str):
                return Profiled(summary=None, communication=None, missing=found)
            times = communication_times(found, world_size=records.world_size)
            return Profiled(summary=found, communication=times, missing=None)
    return None
