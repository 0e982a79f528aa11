"""The page of checks: how each ended, on what ground, what to do next, and where expectations come from."""

from __future__ import annotations

from collections.abc import Sequence

from gpuproof.records.outcome import Judged, Outcome
from gpuproof.records.page import Cell, Column, Page, Section, Text, Tone, table

A_LAUNCH = "a launch is one repeat of the measurement, in processes of its own"
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
    """Lay out outcomes in the order given, and below them where doubted expectations come from."""
    outcomes = table(
        title,
        judged,
        Column.of("", _name, align="left"),
        Column.of("", lambda item: Cell(item.outcome.status, TONES[item.outcome.status]), align="left"),
        Column.of("", lambda item: "\n".join(_explanation(item.outcome)), align="left", folds=True),
    )
    doubted = (item for item in judged if item.outcome.status in ("WARN", "FAIL"))
    sources = tuple(dict.fromkeys(f"{item.name}: {item.outcome.source}" for item in doubted))
    return [outcomes, *([Text(title="Where the expectations come from", lines=sources)] if sources else [])]


def _name(item: Judged) -> str:
    name = item.name if item.outcome.subject == "whole" else f"{item.name} {item.outcome.subject}"
    return name if item.is_required else f"{name} (advisory)"


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
