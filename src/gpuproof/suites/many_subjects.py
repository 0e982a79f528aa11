"""Tabulate the results of many subjects: one row per metric, with the median and both extremes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuproof.base import units
from gpuproof.base.groups import grouped
from gpuproof.records.page import MeasureCell, Pivot
from gpuproof.records.page.tables import Column, pivot_of_rows
from gpuproof.records.result import WHOLE, Measure

IN_RESULT_ALONE = re.compile(
    r"p\d+ step|mean step|per device|memory|fingerprint|"
    r"items|steps|window|(step|energy) of all launches|rank .+"
)
"""Results omitted from the table, because fingerprint agreement is reported separately."""
LEVELS = {"link": "links", "gpu": "devices", "host": "hosts", WHOLE: "figures"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRow:
    """The content of one row."""

    name: str
    figures: Sequence[Measure]
    """One result per subject, lowest first."""

    @property
    def is_one(self) -> bool:
        """Report whether all values have the same text."""
        return len({figure.text for figure in self.figures}) == 1

    @property
    def median(self) -> Measure:
        """The median; if there are two middle values, the lower one, so that it is a measured value."""
        return self.figures[(len(self.figures) - 1) // 2]

    def common(self, attribute: str) -> str:
        """Return the value of an attribute if all results share it; empty if their values differ."""
        words = {getattr(figure, attribute) or "" for figure in self.figures}
        return words.pop() if len(words) == 1 else ""


def values_table(measures: Sequence[Measure]) -> Pivot:
    """Lay out all results except missing ones, step times and memory."""
    return pivot_of_rows(
        "Results (result.json has those of every subject)",
        list(_quantities([measure for measure in measures if _is_shown(measure)])),
        Column.of("case", lambda row: _case(row.figures[0]), align="left"),
        Column.of("metric", lambda row: row.name, align="left", folds=True),
        Column.of("of", _subjects, align="left"),
        Column.of(
            "value, or median", lambda row: MeasureCell(row.median, row.median.text, "strong"), folds=True
        ),
        Column.of("", lambda row: row.common("uncertainty"), is_optional=True),
        Column.of("lowest and highest", _ends, align="left", folds=True, is_optional=True),
    )


def _is_shown(measure: Measure) -> bool:
    return measure.value is not None and IN_RESULT_ALONE.fullmatch(measure.name) is None


def _case(measure: Measure) -> str:
    return measure.case.partition("@")[0]


def _quantities(measures: Sequence[Measure]) -> Iterator[ValueRow]:
    """Group results by metric, in the order in which metrics first appear."""
    rows: defaultdict[tuple[str, ...], list[Measure]] = defaultdict(list)
    for one in measures:
        stage = str(one.labels.get("stage"))
        rows[stage, _case(one), one.name, one.unit, _level(one.subject)].append(one)
    for figures in rows.values():
        yield from _distinct_rows(figures)


def _distinct_rows(figures: Sequence[Measure]) -> Iterator[ValueRow]:
    """Yield a row per set of labels within one subject's results, or one row if all read the same."""
    words: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for one in figures:
        for label, value in one.labels.items():
            if isinstance(value, str):
                words[one.subject, label].add(value)
    is_one = len({one.text for one in figures}) == 1
    telling = () if is_one else sorted({label for (_, label), values in words.items() if len(values) > 1})
    divided = grouped((tuple(str(one.labels.get(label, "")) for label in telling), one) for one in figures)
    for values, of in divided.items():
        name = ", ".join(filter(None, (of[0].name, *values)))
        row = ValueRow(name=name, figures=sorted(of, key=lambda measure: measure.value or 0.0))
        if len(of) > 2 or row.is_one:
            yield row
        else:  # with two subjects, no measured value is the median
            yield from (ValueRow(name=name, figures=[one]) for one in of)


def _level(subject: str) -> str:
    if subject.startswith("link/"):
        return "link"
    return "gpu" if "/gpu/" in subject else subject.partition("/")[0]


def _subjects(row: ValueRow) -> str:
    subjects = {figure.subject for figure in row.figures}
    subject = row.figures[0].subject
    if len(subjects) == 1:
        return "all" if subject == WHOLE else subject
    return f"{units.count(len(subjects))} {LEVELS[_level(subject)]}"


def _ends(row: ValueRow) -> str:
    """Return the lowest and highest values, with their subjects if there are several."""
    ends = (row.figures[0], row.figures[-1])
    is_of_many = ends[0].subject != ends[1].subject
    return "" if row.is_one else "\n".join(f"{x.text}, {x.subject}" if is_of_many else x.text for x in ends)
