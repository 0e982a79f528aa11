"""Summarise the traced steps from a run's first trace, or report why there is no summary.

The summary is created here and not on the node, because the trace is the record: `gpuproof report` can
analyse an old trace with newer code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuproof.base import units
from gpuproof.base.errors import RecordError
from gpuproof.base.files import place_inside
from gpuproof.readings.evidence import Evidence
from gpuproof.records.page import Section, Table, Text
from gpuproof.records.page.tables import Column, table
from gpuproof.records.run import ProfileTrace
from gpuproof.suites.recipe.trace import (
    CommunicationTimes,
    ProfileRow,
    ProfileSummary,
    communication_times,
    parse_trace_event,
    summarize_trace,
)

TITLE = "Profile"
SHOWN = 5
LONGEST_NAME = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """Findings from a trace, separate from all other results of the run."""

    summary: ProfileSummary | None
    communication: CommunicationTimes | None
    missing: str | None
    """Reason why there is no summary of the trace."""


def profile_of(evidence: Evidence) -> Profiled | None:
    """Summarise the trace of the first launch that has a usable one; None if nothing was traced."""
    missing = []
    for records in evidence.launches:
        for trace in records.of(ProfileTrace):
            path = place_inside(evidence.folder_of(records.case), trace.file)
            profile = summarize_trace_file(path, steps=trace.steps)
            if not isinstance(profile, str):
                times = communication_times(profile, world_size=records.world_size)
                return Profiled(summary=profile, communication=times, missing=None)
            missing.append(profile)
    return Profiled(summary=None, communication=None, missing=missing[0]) if missing else None


def summarize_trace_file(path: Path, *, steps: int) -> ProfileSummary | str:
    """Summarise a trace of `steps` steps; if there is no summary, return the reason as text."""
    if not path.is_file():
        return f"{path.name} no longer exists"
    from gpuproof.suites.recipe.trace import trace_events

    try:
        events = (event for raw in trace_events(path) if (event := parse_trace_event(raw)) is not None)
        return summarize_trace(events, steps=steps) or f"{path.name} contains no work"
    except RecordError as error:
        return str(error)


def sections_of_profile(profile: Profiled) -> Iterator[Section]:
    """Show where the time went, then the operators and kernels that used the most time."""
    summary = profile.summary
    if summary is None:
        yield Text(title=TITLE, lines=(f"no summary: {profile.missing}",))
        return
    sentence = (
        f"{summary.steps} steps, traced after the window: slower than untraced steps, and not "
        "included in other results"
    )
    yield Text(title=TITLE, lines=(sentence,))
    yield _lanes(summary)
    yield _top("operator", summary.operators)
    if summary.kernels:
        yield _top("kernel", summary.kernels)


def _lanes(summary: ProfileSummary) -> Table:
    where = "on the GPU" if summary.looked_at == "gpu" else "on the CPU"
    talks = [("communication", summary.communication_s), ("exposed communication", summary.exposed_s)]
    rows = [
        ("computing", summary.compute_s),
        *(talks if summary.communication_s else []),
        ("copies alone", summary.copy_s),
        ("idle", summary.idle_s),
    ]
    return table(
        "",
        rows,
        Column.of(where, lambda row: row[0], align="left"),
        Column.of("a step", lambda row: units.seconds(row[1] / summary.steps)),
        Column.of("share", lambda row: units.share(row[1] / summary.span_s if summary.span_s else None)),
    )


def _top(title: str, rows: Sequence[ProfileRow]) -> Table:
    return table(
        "",
        rows[:SHOWN],
        Column.of(title, lambda row: _shorten(row.name), align="left"),
        Column.of("calls", lambda row: units.count(row.calls)),
        Column.of("self time", lambda row: units.seconds(row.self_s)),
        Column.of("share", lambda row: units.share(row.share)),
    )


def _shorten(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
