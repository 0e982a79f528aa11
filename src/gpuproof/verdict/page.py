"""The page with check outcomes (result, reason, next step) and charts of measures.

Charts show only a measure's value, its interval or its launches.

>>> axis_of(Measure(name="peak memory", value=1.0, unit="bytes", text="")).unit
'B'
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import starmap
from typing import Literal

from gpuproof.base.groups import grouped
from gpuproof.launches.subjects import device_indices
from gpuproof.records import page as pages
from gpuproof.records.collected import CaseRecords
from gpuproof.records.outcome import Judged, Outcome, Status
from gpuproof.records.page import Axis, Chart, Reference, Series, tables
from gpuproof.records.result import WHOLE, Measure
from gpuproof.records.subject_names import named_page
from gpuproof.verdict.rollup import listed

SHARING = ("PASS", "ERROR", "SKIP", "NOT-APPLICABLE")
"""Statuses of outcomes that may share a row."""
CALM = ("PASS", "NOT-APPLICABLE")
MOST_NAMES = 20
"""Maximum number of checks listed in a row; the result lists all of them."""
GRAVEST_FIRST = ("FAIL", "ERROR", "WARN", "SKIP", "PASS", "NOT-APPLICABLE")
TONES: dict[str, pages.Tone] = {
    "PASS": "good",
    "WARN": "warn",
    "FAIL": "bad",
    "ERROR": "bad",
    "SKIP": "faint",
    "NOT-APPLICABLE": "faint",
}
UNITS = {"bytes": "B", "bytes/s": "B/s", "1": "", "share": ""}
"""The axis label for a measure's unit, if it differs."""
Kind = Literal["line", "scatter", "bar"]
MOST_TIMES = 50.0
MOST_ROWS = 64
"""Maximum number of rows in a chart; larger sets go into a table."""


def outcomes_page(
    title: str,
    *groups: tuple[str, Sequence[Judged]],
    provenance: pages.Provenance | None = None,
    launches: Sequence[CaseRecords] = (),
) -> pages.Page:
    """Lay out outcomes by group; a group's title may be empty. The most severe outcome determines the status.

    GPUs are numbered as in `launches`.
    """
    sections = (section for name, judged in groups if judged for section in outcome_sections(name, judged))
    verdict = _verdict([item for _, judged in groups for item in judged])
    page = pages.Page(title=title, verdict=verdict, sections=tuple(sections), provenance=provenance)
    return named_page(page, device_indices(launches))


def _verdict(judged: Sequence[Judged]) -> pages.Verdict | None:
    """Return the most severe outcome with its reason and next step, and how many checks passed."""
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
    """Lay out outcomes in the given order, then list the sources of doubtful expectations.

    Outcomes that passed, or were not measured, share a row if their text is the same. Those that passed or do
    not apply are folded if there are other outcomes.
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
    """List the sources of doubtful expectations, one line each, with the checks based on them."""
    names: defaultdict[str | None, dict[str, None]] = defaultdict(dict)
    for item in (item for item in judged if item.outcome.status in ("WARN", "FAIL")):
        names[item.outcome.source][item.name] = None
    lines = tuple(f"{'; '.join(of)}: {source}" for source, of in names.items())
    return [pages.Text(title="Where the expectations come from", lines=lines)] if lines else []


def _rows(judged: Sequence[Judged]) -> list[list[Judged]]:
    """Return outcomes by row; outcomes that share a row appear where the first of them would."""
    rows: defaultdict[object, list[Judged]] = defaultdict(list)
    for number, item in enumerate(judged):
        is_alone = item.outcome.status not in SHARING
        row = (item.is_required, item.outcome.status, *_explanation(item.outcome))
        rows[number if is_alone else row].append(item)
    return list(rows.values())


def _status(row: Sequence[Judged]) -> Status:
    return row[0].outcome.status


def _names(row: Sequence[Judged]) -> str:
    """Return the names of a row's checks, each with its subjects."""
    subjects = grouped((item.name, item.outcome.subject) for item in row)
    names = list(starmap(_of_subjects, subjects.items()))
    shown = "; ".join(names[:MOST_NAMES])
    more = f"; and {len(names) - MOST_NAMES} more checks" if len(names) > MOST_NAMES else ""
    return f"{shown}{more}" if row[0].is_required else f"{shown}{more} (advisory)"


def _of_subjects(name: str, subjects: Sequence[str]) -> str:
    """Return a check's name with the first few of its subjects.

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


def axis_of(measure: Measure, label: str | None = None, *, is_logarithmic: bool = False) -> Axis:
    """Return the axis for a measure and others of its kind."""
    unit = UNITS.get(measure.unit, measure.unit)
    return Axis(label=label or measure.name, unit=unit, is_logarithmic=is_logarithmic)


def titled(name: str) -> str:
    """Return a measure's name as used in a title."""
    return name[:1].upper() + name[1:]


def ends_of(measure: Measure) -> tuple[float, float]:
    """Return the ends of a measure's interval; its value twice if it has no interval."""
    value = measure.value or 0.0
    return (value, value) if measure.interval is None else (measure.interval.low, measure.interval.high)


def curve(name: str, points: Iterable[tuple[float, Measure | None]]) -> Series:
    """Return measures along an axis with their intervals; a measure without a value gets no mark."""
    of_x = sorted(((x, m) for x, m in points if m is not None and m.value is not None), key=lambda of: of[0])
    return Series(
        name=name,
        points=tuple((x, m.value) for x, m in of_x if m.value is not None),
        ranges=tuple(ends_of(m) for _, m in of_x) if any(m.interval for _, m in of_x) else (),
    )


def chart_of_launches(title: str, measures: Mapping[str, Measure]) -> Chart | None:
    """Return each launch's value relative to the overall value and interval; None for fewer than two."""
    if not any(len(measure.launches) > 1 for measure in measures.values()):
        return None
    replicates = sorted({launch.replicate for measure in measures.values() for launch in measure.launches})
    places = {replicate: float(place) for place, replicate in enumerate(replicates)}
    ends = (-0.5, len(replicates) - 0.5)
    prefixes = {name: f"{name}, " * bool(name) for name in measures}
    series: list[Series] = []
    for name, measure in measures.items():
        if measure.value is not None and measure.interval is not None:
            of_all = f"{prefixes[name]}{measure.interval.level:.0%} interval of all launches"
            ranges = (ends_of(measure),) * 2
            points = tuple((x, measure.value) for x in ends)
            series.append(Series(name=of_all, points=points, ranges=ranges, form="band"))
        values = tuple((places[launch.replicate], launch.value) for launch in measure.launches)
        series.append(Series(name=f"{prefixes[name]}a launch", points=values, form="points"))
    first = next(iter(measures.values()))
    x = Axis(label="launch", names=tuple(str(replicate + 1) for replicate in replicates))
    y = axis_of(first, first.name.partition(", A")[0])
    lines = [
        Reference(label=f"{prefixes[name]}all: {measure.text}", y=measure.value)
        for name, measure in measures.items()
        if measure.value is not None
    ]
    return plain_chart(title, "scatter", x, y, series, *lines)


def bars(title: str, rows: Sequence[tuple[str, Measure | None]], label: str | None = None) -> Chart | None:
    """Return measures as bars in rows, each with its interval; None for fewer than two measures.

    A row whose measure has no value says so. If there are very many rows, the bars become marks numbered from
    1. If the shortest bar would be too short to see, the bars become marks in rows.
    """
    measured = [(float(row), m) for row, (_, m) in enumerate(rows) if m is not None and m.value is not None]
    if len(measured) < 2:
        return None
    axis = axis_of(measured[0][1], label)
    points = tuple((m.value, row) for row, m in measured if m.value is not None)
    if len(rows) > MOST_ROWS:
        upright = Series(name=axis.label, points=tuple((row + 1, value) for value, row in points))
        return plain_chart(title, "scatter", Axis(label="row of the table"), axis, [upright])
    lengths = [value for value, _ in points]
    is_wide = 0 < min(lengths) * MOST_TIMES < max(lengths)
    ranges = tuple(ends_of(m) for _, m in measured) if any(m.interval for _, m in measured) else ()
    names = tuple(name if m and m.value is not None else f"{name}: not measured" for name, m in rows)
    series = [Series(name=axis.label, points=points, ranges=ranges)]
    x, y = replace(axis, is_logarithmic=is_wide), Axis(label="", names=names)
    return plain_chart(title, "scatter" if is_wide else "bar", x, y, series)


def by_size(title: str, label: str, curves: Mapping[str, Iterable[tuple[float, Measure]]]) -> Chart:
    """Return a chart of bandwidth against size in bytes, both logarithmic, one curve per name."""
    size, rate = (
        Axis(label=of, unit=unit, is_logarithmic=True) for of, unit in (("size", "B"), (label, "B/s"))
    )
    return plain_chart(title, "line", size, rate, [curve(name, points) for name, points in curves.items()])


def plain_chart(
    title: str, kind: Kind, x: Axis, y: Axis, series: Iterable[Series], *references: Reference
) -> Chart:
    """Return a chart of data that the page also shows as a table."""
    return Chart(
        title=title, kind=kind, x=x, y=y, series=tuple(series), references=references, is_in_a_table=True
    )


def intervals(title: str, x: Axis, rows: Sequence[tuple[str, Measure]], *references: Reference) -> Chart:
    """Return values with intervals in rows, to show at a glance which side of a line each is on."""
    measured = [(float(row), m) for row, (_, m) in enumerate(rows) if m.value is not None]
    ranges, values = tuple(ends_of(m) for _, m in measured), [(m.value or 0.0, row) for row, m in measured]
    lows = tuple((low, row) for (low, _), (_, row) in zip(ranges, values, strict=True))
    series = (
        Series(name="interval", points=lows, ranges=ranges, form="range"),
        Series(name="value", points=tuple(values), form="tick", colour="ink"),
    )
    names = tuple(name for name, _ in rows)
    return plain_chart(title, "scatter", x, Axis(label="", names=names), series, *references)
