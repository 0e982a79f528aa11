"""The one way to a winner: may both sides be used, and do their launches show a difference?

FASTER, SLOWER, best, a place on a Pareto front and advice rest on `compare_sides`, or on `reason_unusable`
where only means are held against each other. A side that is INVALID wins and loses nothing, nor does one
that is SUSPECT for a reason that touches the difference: every doubt does, but for those of `TOUCHES`. A
figure of one side, or of both together (B over A, B minus A), says in `labels.compared` of which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from gpuproof.base.files import packaged_rows
from gpuproof.records.codec import from_json
from gpuproof.records.result import DOUBTS, WHOLE, Better, Doubt, Measure, Result, Validity, weakening
from gpuproof.statistics.comparison import Comparison, compare_launches, compare_pairs, not_compared

TOUCHES: Mapping[str, str] = {
    row["code"]: row["touches"] for row in packaged_rows(DOUBTS) if row["touches"] is not None
}
"""How a doubt touches a difference (`doubts.csv` says why); one that is not listed touches every figure."""
FORKED = (
    "launches were forked from one process and are not independent repeats (run.start=exec starts fresh "
    "processes)"
)
UNTIMED = ("accuracy", "loss", "perplexity")
"""In names of figures that do not depend on how long a step took."""
COMPARED: Final = "compared"
"""The label that says of which side a figure is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSide:
    """One side: what its launches say, and what speaks against that."""

    name: str
    values: Sequence[float]
    """A value a launch."""
    doubts: Sequence[Doubt] = ()
    validity: Validity | None = None
    """None where the doubts say it."""
    value: float | None = None
    """What stands in tables for all launches; None where sides are only compared in pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """How launches of A and B belong together."""

    is_interleaved: bool = False
    num_pilot: int | None = None
    """Pairs that decided how many there are."""
    between_sessions: float = 0.0
    """Relative standard deviation of one session from the next; 0 where all launches are of one."""

    def comparing(self, better: Better, confidence: float) -> Callable[..., Comparison]:
        """Return the comparison of values of launches."""
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
    """Say what launches of B show against those of A; that they cannot tell where a side is not to be used.

    `refused` says why they cannot for another reason.

    Raises:
        ValueError: a value is not above 0 or not finite.
    """
    why = partial(reason_unusable, is_in_turns=pairing.is_interleaved, figure=figure)
    reason = refused or why(a, beside=b.doubts) or why(b, beside=a.doubts)
    if reason:
        return not_compared(reason, num_a=len(a.values), num_b=len(b.values), confidence=confidence)
    return pairing.comparing(better, confidence)(a.values, b.values)


def reason_unusable(
    side: ComparedSide, *, beside: Sequence[Doubt] = (), is_in_turns: bool = False, figure: str = ""
) -> str | None:
    """Say why a side wins and loses nothing in a figure, next to a side with the doubts `beside`.

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
    """Which of several sides of one session may be called the best."""

    contenders: tuple[ComparedSide, ...]
    left_out: Mapping[str, str]
    """Name → why it wins and loses nothing."""
    missing: str | None
    """Why none may be called so; None where the best of the contenders may."""

    @property
    def named(self) -> str:
        """Those left out in one sentence; "" where there are none."""
        first, *more = [*self.left_out.values(), ""]
        return f"{first} and {len(more) - 1} more cannot be used, either" if len(more) > 1 else first


def contest(sides: Sequence[ComparedSide], *, better: Better, figure: str = "") -> Contest:
    """Return who may win: what all have is alike, and two at least must be left.

    None wins, either, where one that is SUSPECT and so left out has the best figure of all.
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
        return replace(result, missing=f"{left_out[top.name]}, and its figure is the best")
    return result


def _is_counted(side: ComparedSide) -> bool:
    """Say whether there is a figure at all: an INVALID one is none."""
    return side.validity != "INVALID" and all(doubt.validity != "INVALID" for doubt in side.doubts)


def doubts_at(result: Result, case: str) -> tuple[Doubt, ...]:
    """Return the doubts about one case of a run: its own where the run tells them apart, and the run's."""
    rows = [*result.detail.get("points", ()), *result.detail.get("configurations", ())]
    by_case = {
        row.get("case_id", row.get("name")): tuple(from_json(Doubt, x) for x in row.get("doubts", ()))
        for row in rows
    }
    codes = {doubt.code for doubts in by_case.values() for doubt in doubts}
    return (*by_case.get(case, ()), *(doubt for doubt in result.doubts if doubt.code not in codes))


def side_measure(*, name: str, side: str, labels: Mapping[str, Any], **fields: Any) -> Measure:
    """Return the figure of a side, or of both together."""
    return Measure(name=f"{name}, {side}", labels={**labels, COMPARED: side}, **fields)


def side_of(measure: Measure) -> str:
    """Return of which side a figure is."""
    return str(measure.labels[COMPARED])


def title_of(measure: Measure) -> str:
    """Return what is compared, with case and subject where they say more."""
    more = [measure.case] if measure.case != "main" else []
    more += [measure.subject] if measure.subject != WHOLE else []
    return ", ".join([measure.name.removesuffix(f", {side_of(measure)}"), *more])
