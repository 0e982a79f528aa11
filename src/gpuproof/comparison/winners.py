"""The only way to determine a winner: are both sides usable, and do their launches differ?

FASTER, SLOWER, best, a point on a Pareto front and advice are all based on `compare_sides`, or on
`reason_unusable` if only means are compared. A side that is INVALID can neither win nor lose, nor can a side
that is SUSPECT for a reason that affects the difference: every warning does, except the ones in `TOUCHES`. A
value of one side, or of both together (B over A, B minus A), states its side in `labels.compared`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from gpuproof.base.errors import RecordError
from gpuproof.base.files import packaged_rows
from gpuproof.records.codec import from_json
from gpuproof.records.result import DOUBTS, WHOLE, Better, Doubt, Measure, Result, Validity, weakening
from gpuproof.statistics.comparison import Comparison, compare_launches, compare_pairs, not_compared

TOUCHES: Mapping[str, str] = {
    row["code"]: row["touches"] for row in packaged_rows(DOUBTS) if row["touches"] is not None
}
"""How a warning affects a difference (`doubts.csv` explains why); warnings not listed here affect every
result."""
FORKED = (
    "launches were forked from one process and are not independent repeats (run.start=exec starts fresh "
    "processes)"
)
UNTIMED = ("accuracy", "loss", "perplexity")
"""Words in the names of results that do not depend on step time."""
COMPARED: Final = "compared"
"""The label for the side that a result belongs to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSide:
    """One side of a comparison: the values of its launches, and its warnings."""

    name: str
    values: Sequence[float]
    """One value per launch."""
    doubts: Sequence[Doubt] = ()
    validity: Validity | None = None
    """None derives it from the warnings."""
    value: float | None = None
    """The value shown in tables for all launches combined; None if sides are compared only in pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """How the launches of A and B are paired."""

    is_interleaved: bool = False
    num_pilot: int | None = None
    """Number of pilot pairs, which determined how many pairs there are in total."""
    between_sessions: float = 0.0
    """Relative standard deviation between sessions; 0 if all launches are from one session."""

    def comparing(self, better: Better, confidence: float) -> Callable[..., Comparison]:
        """Return the comparison of the launch values."""
        if self.is_interleaved:
            return partial(compare_pairs, better=better, confidence=confidence, num_pilot=self.num_pilot)
        return partial(
            compare_launches,
            better=better,
            confidence=confidence,
            is_cautious=True,
            between_sessions=self.between_sessions,
        )


ONE_SESSION = Pairing()


def compare_sides(
    a: ComparedSide,
    b: ComparedSide,
    *,
    better: Better,
    confidence: float,
    pairing: Pairing = ONE_SESSION,
    figure: str = "",
    refused: str | None = None,
) -> Comparison:
    """Compare launches of B with those of A; the answer is "cannot tell" if a side is not usable.

    `refused` is any other reason why they cannot be compared.

    Raises:
        ValueError: a value is not positive or not finite.
    """
    why = partial(reason_unusable, is_in_turns=pairing.is_interleaved, figure=figure)
    reason = refused or why(a, beside=b.doubts) or why(b, beside=a.doubts)
    if reason:
        return not_compared(reason, num_a=len(a.values), num_b=len(b.values), confidence=confidence)
    return pairing.comparing(better, confidence)(a.values, b.values)


def reason_unusable(
    side: ComparedSide, *, beside: Sequence[Doubt] = (), is_in_turns: bool = False, figure: str = ""
) -> str | None:
    """Explain why a side can neither win nor lose against a side with the warnings `beside`.

    >>> few = Doubt(validity="SUSPECT", code="few-steps", reason="2 steps", remedy="")
    >>> reason_unusable(ComparedSide(name="A", values=[1.0], doubts=[few]))
    'A is SUSPECT (2 steps)'
    """
    codes_beside = {doubt.code for doubt in beside}
    doubts = weakening(side.doubts)
    for doubt in sorted(doubts, key=lambda doubt: doubt.validity != "INVALID"):
        is_common = doubt.code in codes_beside
        if doubt.validity == "INVALID" or _touches(doubt.code, is_common, is_in_turns, figure):
            return f"{side.name} is {doubt.validity} ({doubt.reason})"
    is_bare = side.validity == "INVALID" or (side.validity == "SUSPECT" and not doubts)
    return f"{side.name} is {side.validity}" if is_bare else None


def _touches(code: str, is_common: bool, is_in_turns: bool, figure: str) -> bool:
    if code not in TOUCHES:
        return True
    touch = TOUCHES[code]
    if touch == "never" or any(word in figure for word in UNTIMED):
        return False
    is_excused = {"unless alike": is_common, "unless in turns": is_common and is_in_turns}
    return not is_excused.get(touch, False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """The side, among several in one session, that may be called the best."""

    contenders: tuple[ComparedSide, ...]
    left_out: Mapping[str, str]
    """Name of an excluded side → reason why it can neither win nor lose."""
    missing: str | None
    """Reason why no side may be called the best; None if the best contender may be."""

    @property
    def named(self) -> str:
        """The excluded sides, described in one sentence; "" if there are none."""
        first, *more = [*self.left_out.values(), ""]
        return f"{first} and {len(more) - 1} more cannot be used, either" if len(more) > 1 else first


def contest(sides: Sequence[ComparedSide], *, better: Better, figure: str = "") -> Contest:
    """Return which sides may win, ignoring warnings common to all; at least two sides must remain.

    If an excluded SUSPECT side has the best result of all, there is no winner either.
    """
    codes = [{doubt.code for doubt in side.doubts} for side in sides if _is_counted(side)]
    common = set.intersection(*codes) if codes else set()
    beside = [doubt for side in sides for doubt in side.doubts if doubt.code in common]
    reasons = {side.name: reason_unusable(side, beside=beside, figure=figure) for side in sides}
    left_out = {name: reason for name, reason in reasons.items() if reason}
    contenders = tuple(side for side in sides if side.name not in left_out)
    result = Contest(contenders=contenders, left_out=left_out, missing=None)
    if not left_out:
        return result
    if len(contenders) < 2:
        few = f"only {contenders[0].name}" if contenders else "none"
        return replace(result, missing=f"{few} of {len(sides)} can be used: {result.named}")
    sign = 1 if better == "higher" else -1
    rivals = [side for side in sides if _is_counted(side) and side.value is not None]
    top = max(rivals, key=lambda side: sign * (side.value or 0.0), default=None)
    if top is not None and top.name in left_out:
        return replace(result, missing=f"{left_out[top.name]}, and its result is the best")
    return result


def _is_counted(side: ComparedSide) -> bool:
    """Check whether a side has a usable result: an INVALID result does not count."""
    return side.validity != "INVALID" and all(doubt.validity != "INVALID" for doubt in side.doubts)


def doubts_at(result: Result, case: str) -> tuple[Doubt, ...]:
    """Return the warnings about one case: the case's own, if recorded per case, and the run's."""
    try:
        rows = [*result.detail.get("points", ()), *result.detail.get("configurations", ())]
        by_case = {
            row.get("case_id", row.get("name")): tuple(from_json(Doubt, x) for x in row.get("doubts", ()))
            for row in rows
        }
    except (AttributeError, TypeError) as error:
        raise RecordError(f"is damaged ({error!r})", place=f"{result.run_id}: result.json: points") from error
    codes = {doubt.code for doubts in by_case.values() for doubt in doubts}
    return (*by_case.get(case, ()), *(doubt for doubt in result.doubts if doubt.code not in codes))


def side_measure(*, name: str, side: str, labels: Mapping[str, Any], **fields: Any) -> Measure:
    """Return the value of one side, or of both together."""
    return Measure(name=f"{name}, {side}", labels={**labels, COMPARED: side}, **fields)


def side_of(measure: Measure) -> str:
    """Return the side to which a value belongs."""
    return str(measure.labels[COMPARED])


def title_of(measure: Measure) -> str:
    """Return the title of the compared value, including case and subject if they add information."""
    more = [measure.case] if measure.case != "main" else []
    more += [measure.subject] if measure.subject != WHOLE else []
    return ", ".join([measure.name.removesuffix(f", {side_of(measure)}"), *more])
