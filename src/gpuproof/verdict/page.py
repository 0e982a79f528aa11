"""The page of checks: how each ended, on what ground, what to do next, and where expectations come from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import starmap

from gpuproof.base.groups import grouped
from gpuproof.launches.subjects import device_indices
from gpuproof.records import page as pages
from gpuproof.records.collected import CaseRecords
from gpuproof.records.outcome import Judged, Outcome, Status
from gpuproof.records.page import tables
from gpuproof.records.result import WHOLE
from gpuproof.records.subject_names import named_page
from gpuproof.verdict.rollup import listed

SHARING = ("PASS", "ERROR", "SKIP", "NOT-APPLICABLE")
"""How outcomes ended that may share a row."""
CALM = ("PASS", "NOT-APPLICABLE")
MOST_NAMES = 20
"""Checks that a row names; a result has them all."""
GRAVEST_FIRST = ("FAIL", "ERROR", "WARN", "SKIP", "PASS", "NOT-APPLICABLE")
TONES: dict[str, pages.Tone] = {
    "PASS": "good",
    "WARN": "warn",
    "FAIL": "bad",
    "ERROR": "bad",
    "SKIP": "faint",
    "NOT-APPLICABLE": "faint",
}


def outcomes_page(
    title: str,
    *groups: tuple[str, Sequence[Judged]],
    provenance: pages.Provenance | None = None,
    launches: Sequence[CaseRecords] = (),
) -> pages.Page:
    """Lay out outcomes, group by group; a group's title may be empty. The word is that of the gravest.

    GPUs have the numbers that `launches` tell.
    """
    sections = (section for name, judged in groups if judged for section in outcome_sections(name, judged))
    verdict = _verdict([item for _, judged in groups for item in judged])
    page = pages.Page(title=title, verdict=verdict, sections=tuple(sections), provenance=provenance)
    return named_page(page, device_indices(launches))


def _verdict(judged: Sequence[Judged]) -> pages.Verdict | None:
    """Return the gravest outcome with its reason and next step, and how many checks passed."""
    if not judged:
        return None
    gravest = min(judged, key=lambda item: GRAVEST_FIRST.index(item.outcome.status))
    outcome, num = gravest.outcome, sum(item.outcome.status == "PASS" for item in judged)
    num_applicable = sum(item.outcome.status != "NOT-APPLICABLE" for item in judged)
    return pages.Verdict(
        word=outcome.status,
        tone=TONES[outcome.status],
        reason="" if outcome.status == "PASS" else f"{gravest.name}: {outcome.summary}",
        headline=f"{num} of {num_applicable} checks passed" if num_applicable else "no check applies",
        advice=outcome.next_step,
    )


def outcome_sections(title: str, judged: Sequence[Judged]) -> list[pages.Section]:
    """Lay out outcomes in the order given, and below them where doubted expectations come from.

    What was not measured, or is right, shares a row where the same is said of it. What is right, or does not
    apply, is folded where there is more than that.
    """
    calm = [item for item in judged if item.outcome.status in CALM]
    others = [item for item in judged if item.outcome.status not in CALM]
    if not (calm and others):
        return [_outcomes(title, judged), *_sources(judged)]
    num_passed = sum(item.outcome.status == "PASS" for item in calm)
    counted = f"{num_passed} passed, {len(calm) - num_passed} not applicable"
    folded = replace(_outcomes(f"{title or 'Checks'}: {counted}", calm), is_folded=True)
    return [_outcomes(title, others), *_sources(others), folded]


def _outcomes(title: str, judged: Sequence[Judged]) -> pages.Table:
    return tables.table(
        title,
        _rows(judged),
        tables.Column.of("", _names, align="left", folds=True),
        tables.Column.of("", lambda row: pages.Cell(_status(row), TONES[_status(row)]), align="left"),
        tables.Column.of("", lambda row: "\n".join(_explanation(row[0].outcome)), align="left", folds=True),
    )


def _sources(judged: Sequence[Judged]) -> list[pages.Section]:
    """Name where doubted expectations come from, a line each, with the checks that rest on it."""
    names: defaultdict[str | None, dict[str, None]] = defaultdict(dict)
    for item in (item for item in judged if item.outcome.status in ("WARN", "FAIL")):
        names[item.outcome.source][item.name] = None
    lines = tuple(f"{'; '.join(of)}: {source}" for source, of in names.items())
    return [pages.Text(title="Where the expectations come from", lines=lines)] if lines else []


def _rows(judged: Sequence[Judged]) -> list[list[Judged]]:
    """Return outcomes by row: those that share one stand where the first of them does."""
    rows: defaultdict[object, list[Judged]] = defaultdict(list)
    for number, item in enumerate(judged):
        is_alone = item.outcome.status not in SHARING
        row = (item.is_required, item.outcome.status, *_explanation(item.outcome))
        rows[number if is_alone else row].append(item)
    return list(rows.values())


def _status(row: Sequence[Judged]) -> Status:
    return row[0].outcome.status


def _names(row: Sequence[Judged]) -> str:
    """Name the checks of a row, each with its subjects."""
    subjects = grouped((item.name, item.outcome.subject) for item in row)
    names = list(starmap(_of_subjects, subjects.items()))
    shown = "; ".join(names[:MOST_NAMES])
    more = f"; and {len(names) - MOST_NAMES} more checks" if len(names) > MOST_NAMES else ""
    return f"{shown}{more}" if row[0].is_required else f"{shown}{more} (advisory)"


def _of_subjects(name: str, subjects: Sequence[str]) -> str:
    """Name a check, and the first of what it was of.

    >>> _of_subjects("xid", ["host/a", "host/b"]), _of_subjects("network", ["whole"])
    ('xid: host/a, host/b', 'network')
    """
    shown = listed([subject for subject in subjects if subject != WHOLE])
    return f"{name}: {shown}" if shown else name


def _explanation(outcome: Outcome) -> list[str]:
    lines = [outcome.measured or outcome.reason or ""]
    if outcome.status in ("WARN", "FAIL") or (
        outcome.status == "PASS" and outcome.expected_value is not None
    ):
        lines.append(f"expected: {outcome.expected}")
    if outcome.next_step:
        by = f" ({outcome.responsible})" if outcome.responsible not in (None, "user") else ""
        lines.append(f"→ {outcome.next_step}{by}")
    return lines
