"""Turn compared measures into one verdict and exit code, for runs or interleaved launches.

Without a limit, a comparison only reports: it exits with 0, or with 4 if it cannot tell. With
`max_regression` it is a gate: 3 if the interval of a measure is entirely beyond the limit; 0 if it is within
the limit, or if a regression of that size would have been detected; else 4. Sides that cannot be used have no
interval (`comparison.winners`), so they never win, and neither pass nor fail a gate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpuproof.base import units
from gpuproof.base.errors import ExitCode
from gpuproof.comparison.conditions import DifferingKey
from gpuproof.comparison.measures import ComparedMeasure
from gpuproof.comparison.winners import side_measure
from gpuproof.records.result import Doubt, Measure, Result, Validity, weakening
from gpuproof.statistics.comparison import Comparison, is_beyond, is_within
from gpuproof.statistics.estimate import Interval, as_record
from gpuproof.verdict.rollup import listed

ComparisonWord = Literal[
    "FASTER",
    "SLOWER",
    "FASTER AND SLOWER",
    "NO DIFFERENCE SHOWN",
    "CANNOT TELL",
    "REGRESSION",
    "NO REGRESSION",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """One side of a comparison."""

    name: str
    """Name given by the user."""
    run_id: str
    verdict: str
    validity: Validity | None
    doubts: tuple[Doubt, ...]
    limit: str | None = None
    """The limit of this side's rate; None if unknown."""
    num_launches: int = 0
    """Number of launches that were measured."""
    num_planned: int = 0

    @property
    def lacking(self) -> str | None:
        """The share of its launches that a finished run measured, in words; None if nothing is missing."""
        if self.num_launches >= self.num_planned:
            return None
        return f"{self.num_launches} of {self.num_planned} launches of {self.name} were measured"

    @classmethod
    def of(cls, result: Result, name: str) -> ComparedRun:
        """Extract what a comparison needs from a run."""
        return cls(
            name=name,
            run_id=result.run_id,
            verdict=result.verdict,
            validity=result.validity,
            doubts=weakening(result.doubts),
            limit=None if result.limit is None or result.limit.missing else result.limit.text,
            num_launches=result.num_launches,
            num_planned=result.num_planned,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """Two sides and the findings: everything the page needs."""

    a: ComparedRun
    b: ComparedRun
    is_interleaved: bool
    measures: tuple[ComparedMeasure, ...]
    across: tuple[DifferingKey, ...] = ()
    """The intended differences between the two sides."""
    unlike: tuple[DifferingKey, ...] = ()
    """Other differences between the two sides, which rule out a comparison."""
    max_regression: float | None = None
    """Limit of a gate; None if no gate was requested."""
    between_sessions: float = 0.0
    """Relative standard deviation between sessions, included in the intervals; 0 if launches were
    interleaved."""
    lost: tuple[str, ...] = ()
    """Measures that are not compared, because B, or a launch of one of two interleaved sides, lacks them."""
    notes: tuple[str, ...] = ()

    @property
    def lacking(self) -> tuple[str, ...]:
        """Which finished runs lack launches; missing pairs of interleaved launches are in `num_launches`."""
        if self.is_interleaved:
            return ()
        return tuple(side.lacking for side in (self.a, self.b) if side.lacking)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The verdict shown above a comparison, the reason for it, and the exit code of the command."""

    word: ComparisonWord
    meaning: str
    exit_code: int


def judge(sides: SideBySide) -> Judgement:
    """Return the verdict of a comparison, or of a gate if there is a limit."""
    if sides.unlike:
        named = listed([unlike.key for unlike in sides.unlike])
        return Judgement(
            word="CANNOT TELL", meaning=f"they differ in {named}", exit_code=ExitCode.INCONCLUSIVE
        )
    compared = [measure for measure in sides.measures if measure.comparison.ratio is not None]
    if not compared:
        reasons = (measure.comparison.reason for measure in sides.measures)
        meaning = next(filter(None, reasons), "the runs share no measure with launches")
        return Judgement(word="CANNOT TELL", meaning=meaning, exit_code=ExitCode.INCONCLUSIVE)
    return _direction(compared) if sides.max_regression is None else _gated(sides, sides.max_regression)


def _direction(measures: Sequence[ComparedMeasure]) -> Judgement:
    verdicts = {measure.comparison.verdict for measure in measures}
    shown = [measure for measure in measures if measure.comparison.verdict in ("faster", "slower")]
    if not shown:
        meaning = "no interval of a measure is entirely on one side of 0"
        return Judgement(word="NO DIFFERENCE SHOWN", meaning=meaning, exit_code=ExitCode.DONE)
    word: ComparisonWord = "FASTER" if "faster" in verdicts else "SLOWER"
    if {"faster", "slower"} <= verdicts:
        word = "FASTER AND SLOWER"
    return Judgement(word=word, meaning=f"shown in {_titles(shown)}", exit_code=ExitCode.DONE)


def _gated(sides: SideBySide, limit: float) -> Judgement:
    if worse := [measure for measure in sides.measures if is_regression(measure, limit)]:
        meaning = f"{_titles(worse)} by more than {units.share(limit)}"
        return Judgement(word="REGRESSION", meaning=meaning, exit_code=ExitCode.FAILED)
    if open_still := [measure for measure in sides.measures if not _is_excluded(measure, limit)]:
        meaning = f"whether {_titles(open_still)} regressed by more than {units.share(limit)} is not known"
        return Judgement(word="CANNOT TELL", meaning=meaning, exit_code=ExitCode.INCONCLUSIVE)
    is_same = all(measure.a.launches == measure.b.launches for measure in sides.measures)
    if not sides.is_interleaved and sides.a.run_id == sides.b.run_id and is_same:
        meaning = f"A and B are the same run, {sides.a.run_id}"
        return Judgement(word="CANNOT TELL", meaning=meaning, exit_code=ExitCode.INCONCLUSIVE)
    if sides.lost:
        lost = listed(list(dict.fromkeys(sides.lost)))
        meaning = f"whether {lost} regressed is not known: it was not measured everywhere"
        return Judgement(word="CANNOT TELL", meaning=meaning, exit_code=ExitCode.INCONCLUSIVE)
    if lacking := sides.lacking:
        meaning = f"only {' and '.join(lacking)}"
        return Judgement(word="CANNOT TELL", meaning=meaning, exit_code=ExitCode.INCONCLUSIVE)
    meaning = f"none of more than {units.share(limit)}"
    return Judgement(word="NO REGRESSION", meaning=meaning, exit_code=ExitCode.DONE)


def _titles(measures: Sequence[ComparedMeasure]) -> str:
    return ", ".join(measure.title for measure in measures)


def is_regression(measure: ComparedMeasure, limit: float) -> bool:
    """Check whether a measure regressed beyond a limit, also in the confirmation if there was one."""
    intervals = [measure.comparison, *([measure.confirmation] if measure.confirmation else [])]
    return all(is_beyond(interval, limit, better=measure.better) for interval in intervals)


def _is_excluded(measure: ComparedMeasure, limit: float) -> bool:
    """Check if a regression beyond the limit is excluded, unconfirmed, or would have been detected."""
    comparison = measure.comparison
    if measure.confirmation is not None:  # the second run was large enough, but did not confirm it
        return measure.confirmation.ratio is not None
    would_show = comparison.min_detectable is not None and comparison.min_detectable <= limit
    is_none_shown = comparison.verdict == "no difference shown"
    return is_within(comparison, limit, better=measure.better) or (is_none_shown and would_show)


def percent(ratio: float) -> str:
    """Write a ratio as a percentage change, with two decimals if it is small.

    >>> percent(0.9712), percent(1.5)
    ('-2.88 %', '+50.0 %')
    """
    change = (ratio - 1) * 100
    digits = 2 if abs(change) < 9.995 else 1
    return f"{change:+.{digits}f} %"


def change_text(ratio: Interval) -> str:
    """Format a ratio as a change with its interval."""
    return f"{percent(ratio.centre)} ({percent(ratio.low)} to {percent(ratio.high)})"


def verdict_text(comparison: Comparison) -> str:
    """Put a verdict into words; if no difference was found, add the smallest detectable difference."""
    if comparison.verdict == "cannot tell":
        return f"cannot tell: {comparison.reason}"
    if comparison.verdict == "no difference shown" and comparison.min_detectable is not None:
        return f"no difference shown ({units.would_show(comparison.min_detectable)})"
    return comparison.verdict


def compared_measures(measures: Sequence[ComparedMeasure]) -> Iterator[Measure]:
    """Yield A's value, B's value, and B/A with its interval (or why there is none), for each measure."""
    for measure in measures:
        about: dict[str, Any] = {
            "name": measure.name,
            "case": measure.case,
            "subject": measure.subject,
            "labels": measure.labels,
        }
        for side, figures in (("A", measure.a), ("B", measure.b)):
            yield side_measure(
                **about,
                side=side,
                statistic="geometric mean of launches",
                value=figures.value,
                unit=measure.unit,
                text=units.amount(figures.value, measure.unit),
                num_samples=figures.num_launches,
                launches=figures.launches,
            )
        yield _ratio(measure.comparison, **about, side="B over A", better=measure.better)
        if measure.confirmation is not None:
            yield _ratio(measure.confirmation, **about, side="B over A, confirmation")


def _ratio(compared: Comparison, **about: Any) -> Measure:
    ratio = compared.ratio
    return side_measure(
        **about,
        statistic="ratio of geometric means",
        value=None if ratio is None else ratio.centre,
        unit="1",
        text=units.MISSING if ratio is None else change_text(ratio),
        detail=verdict_text(compared),
        num_samples=None if ratio is None else ratio.num_samples,
        interval=None if ratio is None else as_record(ratio),
        missing=compared.reason,
    )
