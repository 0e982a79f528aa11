"""The page's first table: measured values, expected values, and data-sheet fractions.

Each row is one rate for all subjects of a kind: GEMM with one data type, memory, one link direction, a
collective, or a training run. Its text comes from measures, outcomes and known facts about the boards. The
charts are also built here: hosts by checks, how much slower each subject is, and the tests of each search.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpuproof.base import units
from gpuproof.base.groups import grouped
from gpuproof.records.outcome import Judged, Outcome, kind_of, parent_of
from gpuproof.records.page import Chart, HeatCell, HeatMap, Reference
from gpuproof.records.result import LIMITED_BY, WHOLE, Measure, MeasureInterval
from gpuproof.suites.validate.blamed import BLAME
from gpuproof.verdict.aspects import RATES, AspectCell, Standing, has_labels
from gpuproof.verdict.facts import FleetFacts
from gpuproof.verdict.page import MOST_ROWS, TONES, axis_of, bars, intervals
from gpuproof.verdict.rollup import listed
from gpuproof.verdict.rules.bounds import dense_rate
from gpuproof.verdict.rules.model import MeasureMatch
from gpuproof.verdict.rules.outcomes import published_to_show

NOUNS = {"gpu": "GPUs", "host": "hosts", "link": "links"}
WAYS = {"h2d": "host → GPU", "d2h": "GPU → host", "d2d": "GPU → GPU"}
MFU = "MFU"
ORDER = ("FAIL", "ERROR", "WARN", "PASS", "SKIP", "NOT-APPLICABLE")
"""Most severe first; a cell shows its most severe outcome."""
WORDS = {"NOT-APPLICABLE": "n/a", "SKIP": "skip"}
ALL = "all together"
AROUND = (0.9, 1.1)
"""The minimum range of a chart, as fractions of peer performance; a smaller range would magnify noise."""
MOST_PEERS = 4
"""Maximum number of charts comparing subjects with peers; those with a slow subject come first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateRow:
    """A rate, formatted as text."""

    what: str
    of: str
    """The only subject, or the number of subjects and, if values differ, the one with the lowest value."""
    value: str
    """The value as text; with several subjects, the lowest and the highest value."""
    expected: str
    """The value it was compared with, and the source."""
    published: str
    """Results that others measured with other tools; they have no effect on the verdict."""
    share_of_sheet: str
    limited_by: str
    standing: Standing


def rate_rows(
    cells: Sequence[AspectCell], measures: Sequence[Measure], judged: Sequence[Judged], facts: FleetFacts
) -> tuple[RateRow, ...]:
    """Return a row for each rate that the recipe requires and the hardware has, in recipe order."""
    rates = [x for x in cells if x.aspect in RATES and not (x.standing == "passed" and x.reason)]
    by_row = grouped(
        ((what_of(cell, measure), cell.title), (cell, measure))
        for cell in rates
        for measure in _measures_of(cell, measures) or (None,)
    )
    return tuple(_row(what, pairs, measures, judged, facts) for (what, _), pairs in by_row.items())


def cell_measures(cell: AspectCell, measures: Sequence[Measure]) -> Iterator[Measure]:
    """Yield the measures with a value that belong to a cell."""
    match = MeasureMatch.model_construct(name=str(cell.measure), labels=cell.labels)
    for measure in measures:
        is_its = measure.subject == cell.subject or cell.is_of_any
        if is_its and measure.value is not None and match.picks(measure):
            yield measure


def _measures_of(cell: AspectCell, measures: Sequence[Measure]) -> list[Measure]:
    """Return the measure of each direction at the largest size."""
    of_cell = list(cell_measures(cell, measures))
    largest = max((int(measure.labels.get("size_bytes", 0)) for measure in of_cell), default=0)
    return [measure for measure in of_cell if int(measure.labels.get("size_bytes", 0)) == largest]


def what_of(cell: AspectCell, measure: Measure | None = None) -> str:
    """Return the name of a cell's subject; for a link, the measure's labels contain the direction."""
    labels = {**cell.labels, **({} if measure is None else measure.labels)}
    match cell.aspect:
        case "compute":
            name = f"GEMM {labels.get('dtype', '')}".strip()
        case "memory":
            name = "memory"
        case "links":
            name = WAYS.get(str(labels.get("kind")), cell.title)
        case "collectives":
            where = "over hosts" if cell.subject == WHOLE else "within a host"
            name = f"{str(labels.get('operation', cell.title)).replace('_', '-')} {where}"
        case "training" if cell.labels.get("case") not in (None, "training-one"):
            name = str(cell.labels["case"]).replace("-", ", ", 1)
        case "training":
            name = cell.title
        case _:
            name = cell.name
    return name


def _row(
    what: str,
    pairs: Sequence[tuple[AspectCell, Measure | None]],
    measures: Sequence[Measure],
    judged: Sequence[Judged],
    facts: FleetFacts,
) -> RateRow:
    of_row = sorted((m for _, m in pairs if m is not None), key=lambda measure: measure.value or 0.0)
    cells = [cell for cell, _ in pairs]
    standings: list[Standing] = [cell.standing for cell in cells]
    worst = next(kind for kind in ("failed", "undecided", "passed") if kind in standings)
    first = next(cell for cell in cells if cell.standing == worst)
    return RateRow(
        what=what,
        of=_of(of_row) or ("all" if first.subject == WHOLE else first.subject),
        value=" to ".join(dict.fromkeys(map(_text, (of_row[0], of_row[-1])))) if of_row else "–",
        expected=_expected(first, judged),
        published=published_to_show(of_row[0], facts) if of_row else "",
        share_of_sheet=_share_of_sheet(of_row, measures, facts),
        limited_by=", ".join(dict.fromkeys(_limits(of_row, measures))),
        standing=worst,
    )


def _of(of_row: Sequence[Measure]) -> str:
    """Return the subjects of measures, lowest value first; empty if none or only the whole run."""
    subjects = list(dict.fromkeys(measure.subject for measure in of_row))
    if len(subjects) < 2:
        return "".join(subject for subject in subjects if subject != WHOLE)
    counted = f"{units.count(len(subjects))} {NOUNS.get(kind_of(subjects[0]), 'subjects')}"
    return counted if of_row[0].text == of_row[-1].text else f"{counted}, lowest {subjects[0]}"


def _expected(cell: AspectCell, judged: Sequence[Judged]) -> str:
    """Return the expectation that decided a cell, with its source; empty if nothing did."""
    for item in judged:
        is_its = item.name in cell.decided_by and item.measure == cell.measure
        is_of_subject = item.outcome.subject == cell.subject or cell.is_of_any
        if is_its and is_of_subject and item.outcome.expected and has_labels(item.labels, cell):
            source = "agreed" if item.is_contract else item.outcome.source
            return f"{item.outcome.expected} ({source})"
    return ""


def _text(measure: Measure) -> str:
    """Return the value in readable form, without its subject, which the row shows."""
    return measure.text.partition(",")[0] if "size_bytes" in measure.labels else measure.text


def _share_of_sheet(of_row: Sequence[Measure], measures: Sequence[Measure], facts: FleetFacts) -> str:
    """Return the lowest value as a fraction of the data sheet's; for training, the MFU."""
    for measure in of_row[:1]:
        sheet = dense_rate(measure, facts)
        if sheet is not None and measure.value is not None:
            return units.share(measure.value / sheet[0])
        of_case = (m for m in measures if measure.unit != "1" and m.case == measure.case)
        return next((f"{m.text} MFU" for m in of_case if m.name == MFU), "")
    return ""


def _limits(of_row: Sequence[Measure], measures: Sequence[Measure]) -> Iterator[str]:
    cases = {measure.case for measure in of_row}
    yield from (m.text for m in measures if m.name == LIMITED_BY and m.case in cases)


def heat_map(outcomes: Sequence[Judged]) -> Iterator[HeatMap]:
    """Yield the checks with results by host; identical hosts share a column. Nothing for one host."""
    by_check = grouped((judged.name, judged) for judged in outcomes)
    judging = {
        name: judged
        for name, judged in by_check.items()
        if any(one.outcome.status in ORDER[:4] for one in judged)
    }
    by_host = grouped((_host(one), one) for judged in judging.values() for one in judged)
    if len(by_host.keys() - {ALL}) < 2:
        return
    hosts = grouped((_shown(judged), host) for host, judged in by_host.items())
    columns = sorted(
        map(set, hosts.values()),
        key=lambda same: min(_gravity(one) for host in same for one in by_host[host]),
    )[:MOST_ROWS]
    rows = [
        (name, tuple(_cell([one for one in judged if _host(one) in same]) for same in columns))
        for name, judged in sorted(judging.items(), key=lambda item: min(map(_gravity, item[1])))
    ]
    names = tuple(listed(sorted(same)) for same in columns)
    yield HeatMap(title="Hosts by checks", columns=names, rows=tuple(rows))


def _host(judged: Judged) -> str:
    subject = judged.outcome.subject
    host = subject if subject.startswith("host/") and "/gpu/" not in subject else parent_of(subject)
    return ALL if host == WHOLE else host.removeprefix("host/")


def _shown(judged: Sequence[Judged]) -> object:
    """Return a key for a host's displayed results: hosts with equal keys share one column."""
    passed = (one for one in judged if one.outcome.status == "PASS")
    others = (one for one in judged if one.outcome.status != "PASS")
    texts = frozenset((one.name, one.outcome.status, one.outcome.summary) for one in others)
    return texts, frozenset(one.name for one in passed), _host(judged[0]) == ALL


def _gravity(judged: Judged) -> int:
    return ORDER.index(judged.outcome.status)


def _cell(judged: Sequence[Judged]) -> HeatCell | None:
    if not judged:
        return None
    status = min(judged, key=_gravity).outcome.status
    others = [one.outcome for one in judged if one.outcome.status != "PASS"]
    lines = dict.fromkeys(
        f"{outcome.subject}: {outcome.summary}{f' → {outcome.next_step}' if outcome.next_step else ''}"
        for outcome in others
    )
    return HeatCell(word=WORDS.get(status, status), tone=TONES[status], lines=tuple(lines))


def peer_charts(outcomes: Sequence[Judged]) -> Iterator[Chart]:
    """Yield each subject's measurement relative to its peers: which are slower, and by how much."""
    peers = [one for one in outcomes if one.basis == "peers" and one.outcome.measured_value is not None]
    by_check = grouped((judged.name, judged) for judged in peers)
    by_gravity = sorted(by_check.items(), key=lambda item: min(map(_gravity, item[1])))
    for name, judged in [item for item in by_gravity if len(item[1]) > 1][:MOST_PEERS]:
        shown = sorted(judged, key=lambda one: (_gravity(one), one.outcome.measured_value or 0.0))[:MOST_ROWS]
        expected = [one.outcome.expected_value for one in shown if one.outcome.expected_value is not None][:1]
        reach = tuple(share * value for value in expected for share in AROUND)
        rows = [(f"{one.outcome.subject} {one.outcome.status}", _as_measure(one.outcome)) for one in shown]
        lines = (Reference(label="of its peers", x=x) for x in expected)
        title = f"{name}: {len(shown)} of {len(judged)}" if len(shown) < len(judged) else name
        chart = intervals(title, replace(axis_of(rows[0][1], "measured"), reach=reach), rows, *lines)
        yield replace(chart, is_in_a_table=True)


def _as_measure(outcome: Outcome) -> Measure:
    """Return the evaluated value, as a measure with an interval that a chart can draw."""
    low, high = outcome.measured_low, outcome.measured_high
    interval = None
    if low is not None and high is not None:
        interval = MeasureInterval(low=low, high=high, level=0.95, kind="bound", method="of the rule")
    value, unit = outcome.measured_value, outcome.unit or ""
    return Measure(name="measured", value=value, unit=unit, text=outcome.measured or "", interval=interval)


def blame_charts(measures: Sequence[Measure]) -> Iterator[Chart]:
    """Yield the tests of each search for what slows a collective, in the order in which they ran."""
    searches = grouped((m.labels[BLAME], m) for m in measures if BLAME in m.labels)
    for name, tests in searches.items():
        rows = [(str(test.labels["members"]), test) for test in tests[:MOST_ROWS]]
        if chart := bars(f"Tests of {name}", rows, "bytes per second through the group"):
            yield chart
