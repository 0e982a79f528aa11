"""Recording B against recording A: the result and the page of `gpuproof monitor compare`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuproof import __version__
from gpuproof.base.errors import ExitCode
from gpuproof.base.groups import grouped
from gpuproof.base.units import MISSING
from gpuproof.comparison.page import compared, verdict_column
from gpuproof.comparison.recordings import CONFIDENCE, RecordingComparison, signed
from gpuproof.comparison.winners import side_of, title_of
from gpuproof.records.codec import to_json
from gpuproof.records.page import Page, Provenance, Section, Text, Tone, Verdict
from gpuproof.records.page.tables import Column, figure, pivot
from gpuproof.records.result import Measure, Result

NAME: Final = "monitor compare"
TONES: Final[dict[str, Tone]] = {"NOT COMPARABLE": "bad", "COMPARABLE": "good"}
NO_READING: Final = "Neither recording has a reading to compare there."
LIMITS: Final = (
    "the intervals (by what changes slowest) hold for these two recordings only: what another launch of "
    "either would give is not in them; to compare two configurations, measure each several times"
)


def recordings_result(comparison: RecordingComparison) -> Result:
    """Return the figures of two recordings side by side, and the conditions in which they are unlike."""
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
    """Lay out whether two recordings are comparable, then the figures, then their limits."""
    word, meaning = _comparable(comparison)
    verdict = Verdict(word=word, tone=TONES.get(word, "plain"), reason=meaning)
    sections = (
        _sides(comparison),
        *_lines("Conditions", (unlike.text for unlike in comparison.unlike)),
        *_means(comparison),
        *_spent(comparison),
        *_lines("About the comparison", _about(comparison)),
    )
    title = f"{comparison.b} against {comparison.a}"
    return Page(title=title, verdict=verdict, sections=sections, provenance=provenance)


def _comparable(comparison: RecordingComparison) -> tuple[str, str]:
    """Return whether two recordings are comparable, and why."""
    if not comparison.comparable:
        return "NOT COMPARABLE", "as they stand, these conditions differ, and may be all that is seen below"
    if any(unlike.weight == "unknown" for unlike in comparison.unlike):
        return "COMPARABLE AS FAR AS WAS RECORDED", "some conditions are unknown"
    if comparison.has_gpus:
        return "COMPARABLE", "same GPU, driver, power limit and clock limits"
    return "COMPARABLE", "same CPU; there is no GPU on either side"


def _sides(comparison: RecordingComparison) -> Section:
    names = {"A": comparison.a, "B": comparison.b}
    return pivot(
        "Compared",
        comparison.sides,
        (
            Column.of("", side_of, align="left"),
            Column.of("recording", lambda measure: names[side_of(measure)], align="left", folds=True),
        ),
        figure("GPUs", "num_gpus"),
        figure("recorded", "duration_s"),
        figure("of which compared", "used_s"),
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
        figure("B − A", "B minus A"),
        figure("interval", "B minus A", _interval),
        figure("shown from", "shown from"),
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
    """Lay out energy and time held back, one figure a recording."""
    if not comparison.spent:
        return
    title = f"Over {comparison.spent_basis}, all GPUs together"
    yield compared(title, comparison.spent, figure("B − A", "B over A"))
    yield from _lines("", _unknown(comparison.spent))


def _unknown(measures: tuple[Measure, ...]) -> Iterator[str]:
    yield "one figure a recording, so without an interval"
    missing = (measure for measure in measures if measure.missing is not None)
    yield from dict.fromkeys(
        f"{title_of(m).partition(':')[0]} of {side_of(m)} is not known: {m.missing}" for m in missing
    )


def _lines(title: str, lines: Iterator[str]) -> Iterator[Section]:
    if texts := tuple(lines):
        yield Text(title=title, lines=texts)


def _about(comparison: RecordingComparison) -> Iterator[str]:
    levels = [m.interval.level for m in comparison.means if m.interval is not None]
    if levels:
        num = sum(side_of(measure) == "A" for measure in comparison.means)
        together = f"those of {num} metrics all hold at {CONFIDENCE:.0%}"
        yield f"each interval has {levels[0]:.2%}, so that {together}"
        yield "shown from: the smallest difference that would have been shown four times in five"
    yield LIMITS
