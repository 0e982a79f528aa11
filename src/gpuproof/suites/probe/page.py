"""The page of a probe: how its comparisons ended, a matrix of devices, and every figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuproof import units
from gpuproof.analysis.probes.figures import WRONG_VALUES
from gpuproof.records.codec import from_json
from gpuproof.records.outcome import Judged, Status
from gpuproof.records.page import Cell, Column, Notice, Notices, Page, Section, Tone, table
from gpuproof.records.result import Result
from gpuproof.suites.probe.conclude import ProbeDetail, ProbeRow
from gpuproof.suites.sections import benchmark_page

TONES: Mapping[Status, Tone] = {"PASS": "good", "FAIL": "bad", "ERROR": "bad"}
SHOWN_AS = {"size_bytes": units.memory, "message_bytes": units.memory, "block_bytes": units.memory}


def page(result: Result) -> Page:
    """Lay out outcomes, then the matrix of devices at the largest size, then all figures."""
    detail = from_json(ProbeDetail, result.detail, place="result.json: detail")
    figures = table(
        "Measured",
        detail.rows,
        Column.of("what", lambda row: row.quantity, align="left"),
        Column.of("of", lambda row: _short(row.subject), align="left"),
        Column.of("conditions", lambda row: _labels(row.labels), align="left"),
        Column.of("value", _value),
        Column.of("±", lambda row: row.uncertainty or "", is_optional=True),
    )
    return benchmark_page(
        result, detail.common, *_outcomes(result.outcomes), *_matrix(detail.rows), figures, num_measures=0
    )


def _outcomes(outcomes: Sequence[Judged]) -> Iterator[Section]:
    """Show what did not pass one by one, and of the rest how many there are."""
    shown = [judged for judged in outcomes if judged.outcome.status != "PASS"]
    passed = len(outcomes) - len(shown)
    notices = [_notice(judged) for judged in shown]
    if passed:
        notices.append(Notice(word="PASS", tone="good", text=f"{passed} subjects: nothing wrong was found"))
    yield Notices(title="Compared", notices=tuple(notices))


def _notice(judged: Judged) -> Notice:
    outcome = judged.outcome
    return Notice(
        word=outcome.status,
        tone=TONES.get(outcome.status, "warn"),
        text=f"{judged.name}, {outcome.subject}: {outcome.reason or outcome.measured}",
        advice=outcome.next_step,
    )


def _matrix(rows: Sequence[ProbeRow]) -> Iterator[Section]:
    """Show copies from each device to each other at the largest size: rows send, columns receive."""
    copies = [row for row in rows if row.labels.get("kind") == "d2d" and row.unit == "B/s"]
    largest = max((row.labels["size_bytes"] for row in copies), default=0)
    one_way = [
        row for row in copies if row.labels["size_bytes"] == largest and row.labels["direction"] == "one_way"
    ]
    by_ends = {tuple(row.subject.removeprefix("link/").split(">")): row for row in one_way}
    ends = list(dict.fromkeys(end for pair in by_ends for end in pair))
    if ends:
        yield table(
            f"From each device (row) to each other, {units.memory(largest)}, one way",
            ends,
            Column.of("from", lambda end: end.rpartition("/gpu/")[2], align="left"),
            *(_column(end, by_ends) for end in ends),
        )


def _column(target: str, by_ends: Mapping[Any, ProbeRow]) -> Column:
    def cell(source: str) -> str:
        found = by_ends.get((source, target))
        return "" if found is None else found.text

    return Column.of(target.rpartition("/gpu/")[2], cell)


def _short(subject: str) -> str:
    """Write a subject for people: hosts and devices by their names alone.

    >>> _short("link/host/a>host/a/gpu/GPU-1")
    'a → a GPU-1'
    """
    ends = subject.removeprefix("link/").split(">")
    return " → ".join(end.removeprefix("host/").replace("/gpu/", " ") for end in ends)


def _labels(labels: Mapping[str, Any]) -> str:
    shown = (
        SHOWN_AS[key](value) if key in SHOWN_AS else f"{key.replace('_', ' ')} {value}".replace("_", " ")
        for key, value in labels.items()
    )
    return ", ".join(shown)


def _value(row: ProbeRow) -> Cell:
    if row.value is None:
        return Cell(row.detail, "warn")
    return Cell(row.text, "bad" if row.quantity == WRONG_VALUES and row.value else "plain")
