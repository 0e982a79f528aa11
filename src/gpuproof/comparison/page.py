"""The pages for comparisons of two runs or two recordings (`gpuproof monitor compare`).

For runs: each measure of A and B, verdicts, clocks, outliers and how many launches are needed. For
recordings: whether they are comparable, their means, and the energy and throttling of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from gpuproof import __version__
from gpuproof.base import units
from gpuproof.base.errors import ExitCode
from gpuproof.base.groups import grouped
from gpuproof.base.units import MISSING
from gpuproof.comparison.judge import (
    ComparedRun,
    Judgement,
    SideBySide,
    change_text,
    compared_measures,
    verdict_text,
)
from gpuproof.comparison.measures import CONFIDENCE, explained_by_clocks
from gpuproof.comparison.recordings import RecordingComparison, signed
from gpuproof.comparison.winners import side_of, title_of
from gpuproof.records.codec import to_json
from gpuproof.records.page import (
    Axis,
    Cell,
    Chart,
    Notices,
    Page,
    Pivot,
    Provenance,
    Reference,
    Section,
    Text,
    Tone,
    Verdict,
)
from gpuproof.records.page.tables import Column, measure_column, pivot, table
from gpuproof.records.result import A_THROUGHPUT, OLDER, Measure, Result, how_launched
from gpuproof.statistics.comparison import Comparison
from gpuproof.statistics.dispersion import outliers_by_chance
from gpuproof.verdict.page import MOST_ROWS, chart_of_launches, intervals, titled

TONES: dict[str, Tone] = {
    "FASTER": "good",
    "SLOWER": "warn",
    "FASTER AND SLOWER": "warn",
    "REGRESSION": "bad",
    "NO REGRESSION": "good",
    "CANNOT TELL": "bad",
}
VERDICT_TONES: dict[str, Tone] = {"faster": "good", "slower": "warn"}
RATIO = "B over A"
MOST_PAIRS = 3
"""Measures for which launches are plotted."""
AT_OTHER_TIMES = (
    "A and B ran at different times: anything that changed on the machine in between is part of "
    "the difference"
)
NO_LONGER = "an outlier is a launch with a modified Z-score over 3.5; none is excluded from the results above"
NAME: Final = "monitor compare"
COMPARABLE_TONES: Final[dict[str, Tone]] = {"NOT COMPARABLE": "bad", "COMPARABLE": "good"}
NO_READING: Final = "Neither recording has a reading to compare there."
LIMITS: Final = (
    "the intervals (dominated by the slowest changes) apply to these two recordings only: they do not cover "
    "the variation between launches; to compare two configurations, measure each several times"
)


def headline(comparison: SideBySide) -> str:
    """Return what a list shows for a comparison: the first measure that has a ratio."""
    for measure in comparison.measures:
        if measure.comparison.ratio is not None:
            return f"{measure.title} {change_text(measure.comparison.ratio)}"
    return ""


def comparison_page(comparison: SideBySide, judgement: Judgement) -> Page:
    """Lay out a comparison of two runs as a separate page."""
    doubts = [doubt for _, side in _named(comparison) for doubt in side.doubts]
    verdict = Verdict(
        word=judgement.word,
        tone=TONES.get(judgement.word, "plain"),
        reason=judgement.meaning,
        headline=headline(comparison),
        advice=next((doubt.remedy for doubt in doubts), None),
    )
    title = f"{comparison.b.name} against {comparison.a.name}"
    sections = (
        Text(title="", lines=tuple(_how_launched(comparison))),
        table(
            "Compared",
            [("A", comparison.a), ("B", comparison.b)],
            Column.of("", lambda row: row[0], align="left"),
            Column.of("run", lambda row: row[1].name, align="left", folds=True),
            Column.of("verdict", lambda row: row[1].verdict, align="left"),
        ),
        *_doubts(comparison),
        *comparison_sections(comparison),
    )
    return Page(title=title, verdict=verdict, sections=sections)


def _how_launched(comparison: SideBySide) -> Iterator[str]:
    """Say how launches were started, which files of older tools do not tell."""
    codes = {doubt.code for side in (comparison.a, comparison.b) for doubt in side.doubts}
    if OLDER.code not in codes:
        sides = (side for measure in comparison.measures for side in (measure.a, measure.b))
        yield how_launched(launch for side in sides for launch in side.launches)


def comparison_sections(comparison: SideBySide) -> tuple[Section, ...]:
    """Lay out the measures and the remarks on them."""
    unlike = (*comparison.unlike, *comparison.across)
    clocks = ((m.title, explained_by_clocks(m.comparison, m.cycles)) for m in comparison.measures)
    texts = (
        Text(title="They differ in", lines=tuple(key.text for key in unlike)),
        Text(title="Clocks", lines=tuple(f"{title}: {text}" for title, text in clocks if text)),
        Text(title="Launches", lines=tuple(_launches(comparison))),
        Text(title="About the comparison", lines=tuple(_about(comparison))),
    )
    charts = _charts(list(compared_measures(comparison.measures)), comparison.max_regression)
    return (_measures(comparison), *charts, *(text for text in texts if text.lines))


def _charts(measures: Sequence[Measure], max_regression: float | None) -> Iterator[Chart]:
    """Yield charts of the ratio B/A for every measure, and of launches for the first few."""
    sides = list(grouped((title_of(measure), measure) for measure in measures).items())
    ratios = [
        (title, measure)
        for title, of_title in sides[:MOST_ROWS]
        for measure in of_title
        if side_of(measure) == RATIO and measure.value is not None
    ]
    if ratios:
        limit = max_regression or 0.0
        margin = (
            {1 - limit: f"{units.share(limit)} less", 1 + limit: f"{units.share(limit)} more"}
            if limit
            else {}
        )
        lines = [Reference(label=label, x=x) for x, label in {1.0: "no difference", **margin}.items()]
        yield intervals("B over A, with intervals", Axis(label=RATIO), ratios, *lines)
    for title, of_title in sides[:MOST_PAIRS]:
        both = {side_of(measure): measure for measure in of_title if side_of(measure) in ("A", "B")}
        if chart := chart_of_launches(f"Launches of A and B: {titled(title)}", both):
            yield chart


def _doubts(comparison: SideBySide) -> Iterator[Section]:
    if not any(side.doubts for _, side in _named(comparison)):
        return
    # Recordings have no warnings, and the node archive, which compares them, does not contain the rules for
    # warnings.
    from gpuproof.verdict.doubts.notices import CODES, doubt_notices

    notices = [
        notice for name, side in _named(comparison) for notice in doubt_notices(side.doubts, side=name)
    ]
    yield Notices(title="Why to doubt it", notices=tuple(notices))
    yield Text(title="", lines=(CODES,))


def _named(comparison: SideBySide) -> tuple[tuple[str, ComparedRun], ...]:
    return ("A", comparison.a), ("B", comparison.b)


def _measures(comparison: SideBySide) -> Section:
    return compared(
        "Measures",
        compared_measures(comparison.measures),
        Column.of("launches", lambda row: f"{row['A'].num_samples} + {row['B'].num_samples}"),
        measure_column("B against A", RATIO),
        verdict_column(RATIO),
        measure_column("confirmation", "B over A, confirmation", is_optional=True),
    )


def compared(title: str, measures: Iterable[Measure], *columns: Column) -> Pivot:
    """Lay out the values of A and B side by side, followed by the `columns` that combine them."""
    name = Column.of("measure", title_of, align="left", folds=True)
    return pivot(
        title, measures, (name,), measure_column("A", "A"), measure_column("B", "B"), *columns, key=side_of
    )


def verdict_column(side: str) -> Column:
    """Return the column for a value that combines both sides."""

    def cell(row: Mapping[str, Measure]) -> Cell:
        return Cell(row[side].detail, VERDICT_TONES.get(row[side].detail, "plain"))

    return Column.of("verdict", cell, align="left", folds=True)


def _change(comparison: Comparison) -> str:
    return units.MISSING if comparison.ratio is None else change_text(comparison.ratio)


def _launches(comparison: SideBySide) -> Iterator[str]:
    for measure in comparison.measures:
        named = [
            f"{name} {', '.join(str(replicate + 1) for replicate in side.outlying)}"
            for name, side in (("A", measure.a), ("B", measure.b))
            if side.outlying
        ]
        if named and measure.without_outliers is not None:
            without = measure.without_outliers
            yield (
                f"{measure.title}: outliers: launch {' and '.join(named)}; without "
                f"{_change(without)}, {verdict_text(without)}"
            )
    if any(measure.without_outliers for measure in comparison.measures):
        yield NO_LONGER
        yield outliers_by_chance()
    needed = [measure.launches_for_one_percent for measure in comparison.measures]
    if most := max((number for number in needed if number is not None), default=None):
        yield f"for a ratio to ±1 % {most} launches per side would be needed at this spread"


def _limits(comparison: SideBySide) -> Iterator[str]:
    """Report if the sides' bottlenecks differ, or if a side's rate says nothing about its device."""
    limits = {name: side.limit for name, side in _named(comparison) if side.limit is not None}
    if len(set(limits.values())) == len(limits) == 2:
        yield f"the sides have different bottlenecks: {limits['A']} for A, {limits['B']} for B"
    for name, limit in limits.items():
        if limit in ("host", "data loading"):
            yield f"{name} is limited by its {limit}, so its rate says nothing about its device"


def _about(comparison: SideBySide) -> Iterator[str]:
    yield from _limits(comparison)
    num = len(comparison.measures)
    together = f" for all {num} measures together" if num > 1 else ""
    if headline(comparison):
        means = "A and B are geometric means of the launches, and B against A is the ratio B/A"
        yield f"{means}; elsewhere {A_THROUGHPUT}"
        yield f"intervals hold at {CONFIDENCE:.0%}{together}"
    if not comparison.is_interleaved:
        yield (
            f"{AT_OTHER_TIMES}, and its interval includes a variation of "
            f"{units.share(comparison.between_sessions)} between sessions (relative standard "
            "deviation, --between-sessions), which more launches do not reduce; `gpuproof compare "
            "--ab` alternates launches"
        )
    yield from (f"only {lacking}" for lacking in comparison.lacking)
    yield from comparison.notes


def recordings_result(comparison: RecordingComparison) -> Result:
    """Return the values of two recordings side by side, and the conditions in which they differ."""
    word, meaning = _comparable(comparison)
    return Result(
        suite=NAME,
        run_id=f"{comparison.a} and {comparison.b}",
        gpuproof_version=__version__,
        validity=None,
        verdict=word,
        headline=meaning,
        exit_code=ExitCode.DONE,
        num_launches=0,
        num_planned=0,
        conditions={"basis": comparison.basis},
        doubts=(),
        failures=(),
        measures=(*comparison.sides, *comparison.means, *comparison.spent),
        detail={"unlike": to_json(comparison.unlike), "spent_basis": comparison.spent_basis},
    )


def recordings_page(comparison: RecordingComparison, provenance: Provenance | None = None) -> Page:
    """Lay out whether two recordings are comparable, then the values, then the limitations."""
    word, meaning = _comparable(comparison)
    verdict = Verdict(word=word, tone=COMPARABLE_TONES.get(word, "plain"), reason=meaning)
    sections = (
        _recordings(comparison),
        *_lines("Conditions", (unlike.text for unlike in comparison.unlike)),
        *_means(comparison),
        *_spent(comparison),
        *_lines("About the comparison", _about_recordings(comparison)),
    )
    title = f"{comparison.b} against {comparison.a}"
    return Page(title=title, verdict=verdict, sections=sections, provenance=provenance)


def _comparable(comparison: RecordingComparison) -> tuple[str, str]:
    """Return whether two recordings are comparable, with the reason."""
    if not comparison.comparable:
        return "NOT COMPARABLE", "these conditions differ, and may explain all differences below"
    if any(unlike.weight == "unknown" for unlike in comparison.unlike):
        return "COMPARABLE AS FAR AS RECORDED", "some conditions are unknown"
    if comparison.has_gpus:
        return "COMPARABLE", "same GPU, driver, power limit and clock limits"
    return "COMPARABLE", "same CPU; there is no GPU on either side"


def _recordings(comparison: RecordingComparison) -> Section:
    names = {"A": comparison.a, "B": comparison.b}
    return pivot(
        "Compared",
        comparison.sides,
        (
            Column.of("", side_of, align="left"),
            Column.of("recording", lambda measure: names[side_of(measure)], align="left", folds=True),
        ),
        measure_column("GPUs", "num_gpus"),
        measure_column("recorded", "duration_s"),
        measure_column("of which compared", "used_s"),
        key=lambda measure: measure.labels["metric"],
    )


def _means(comparison: RecordingComparison) -> Iterator[Section]:
    title = f"Means over {comparison.basis}"
    if not comparison.means:
        yield Text(title=title, lines=(NO_READING,))
        return
    yield compared(
        title,
        comparison.means,
        measure_column("B − A", "B minus A"),
        measure_column("interval", "B minus A", _interval),
        measure_column("shown from", "shown from"),
        verdict_column("B minus A"),
    )
    reasons = grouped(
        (m.missing, title_of(m)) for m in comparison.means if side_of(m) == "B minus A" and m.missing
    )
    yield from _lines("", (f"{', '.join(titles)}: cannot tell: {why}" for why, titles in reasons.items()))


def _interval(measure: Measure) -> str:
    if measure.interval is None:
        return MISSING
    low, high = (
        signed(measure.labels["metric"], end) for end in (measure.interval.low, measure.interval.high)
    )
    return f"{low} … {high}"


def _spent(comparison: RecordingComparison) -> Iterator[Section]:
    """Lay out energy and throttled time, one value per recording."""
    if not comparison.spent:
        return
    title = f"Over {comparison.spent_basis}, all GPUs together"
    yield compared(title, comparison.spent, measure_column("B − A", "B over A"))
    yield from _lines("", _unknown(comparison.spent))


def _unknown(measures: tuple[Measure, ...]) -> Iterator[str]:
    yield "one value per recording, so there is no interval"
    missing = (measure for measure in measures if measure.missing is not None)
    yield from dict.fromkeys(
        f"{title_of(m).partition(':')[0]} of {side_of(m)} is not known: {m.missing}" for m in missing
    )


def _lines(title: str, lines: Iterator[str]) -> Iterator[Section]:
    if texts := tuple(lines):
        yield Text(title=title, lines=texts)


def _about_recordings(comparison: RecordingComparison) -> Iterator[str]:
    levels = [m.interval.level for m in comparison.means if m.interval is not None]
    if levels:
        num = sum(side_of(measure) == "A" for measure in comparison.means)
        together = f"the intervals of all {num} metrics hold together at {CONFIDENCE:.0%}"
        yield f"each interval has a confidence level of {levels[0]:.2%}, so that {together}"
        yield "shown from: the smallest difference that would have been detected with 80 % probability"
    yield LIMITS
