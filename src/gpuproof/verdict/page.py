"""The page of checks: how each ended, on what ground, what to do next, and where expectations come from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import starmap

from gpuproof.groups import grouped
from gpuproof.records.outcome import Judged, Outcome, Status
from gpuproof.records.page import Cell, Column, Page, Section, Text, Tone, table
from gpuproof.records.result import WHOLE
from gpuproof.verdict.rollup import listed

SHARING = ("PASS", "ERROR", "SKIP", "NOT-APPLICABLE")
"""How outcomes ended that may share a row."""
MOST_NAMES = 20
"""Checks that a row names; a result has them all."""
TONES: dict[str, Tone] = {
    "PASS": "good",
    "WARN": "warn",
    "FAIL": "bad",
    "ERROR": "bad",
    "SKIP": "faint",
    "NOT-APPLICABLE": "faint",
}


def outcomes_page(title: str, *groups: tuple[str, Sequence[Judged]]) -> Page:
    """Lay out outcomes, group by group; a group's title may be empty."""
    sections = (section for name, judged in groups if judged for section in outcome_sections(name, judged))
    return Page(title=title, verdict=None, sections=tuple(sections))


def outcome_sections(title: str, judged: Sequence[Judged]) -> list[Section]:
    """Lay out outcomes in the order given, and below them where doubted expectations come from.

    What was not measured, or is right, shares a row where the same is said of it.
    """
    outcomes = table(
        title,
        _rows(judged),
        Column.of("", _names, align="left", folds=True),
        Column.of("", lambda row: Cell(_status(row), TONES[_status(row)]), align="left"),
        Column.of("", lambda row: "\n".join(_explanation(row[0].outcome)), align="left", folds=True),
    )
    return [outcomes, *_sources([item for item in judged if item.outcome.status in ("WARN", "FAIL")])]


def _sources(doubted: Sequence[Judged]) -> list[Section]:
    """Name where expectations come from, a line each, with the checks that rest on it."""
    names: defaultdict[str | None, dict[str, None]] = defaultdict(dict)
    for item in doubted:
        names[item.outcome.source][item.name] = None
    lines = tuple(f"{'; '.join(of)}: {source}" for source, of in names.items())
    return [Text(title="Where the expectations come from", lines=lines)] if lines else []


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
