"""Compare two finished runs of any suite: by their measures, with a verdict.

Nothing is launched or written. Runs made under different conditions are rejected with a list of the keys that
differ; `across` states the one intended difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gpuproof import __version__
from gpuproof.base.errors import UsageError
from gpuproof.comparison.conditions import DifferingKey, covers, differing_keys
from gpuproof.comparison.judge import ComparedRun, SideBySide, compared_measures, judge
from gpuproof.comparison.measures import (
    clocks_of,
    comparable,
    compare_measures,
    lost_in_b,
    measured,
    only_in_one,
)
from gpuproof.comparison.page import comparison_page, headline
from gpuproof.comparison.winners import Pairing, doubts_at
from gpuproof.records.codec import from_json, to_json
from gpuproof.records.page import Page, Provenance
from gpuproof.records.result import Result, Validity
from gpuproof.verdict.simulated import CONDITION, as_simulated, marked

NAME = "compare"
OTHER_WORK = ("data.batch_size", "data.image_size", "distributed.gradient_accumulation_steps", "model")
"""Keys that change the work per step, so that step times cannot be compared."""
STEP_TIMES = ("p50 step",)
MOST_KEYS = 4
"""If more keys than this differ, the suggested `--across` names their sections."""
FROM_WORST: tuple[Validity | None, ...] = ("INVALID", None, "SUSPECT", "VALID")
BETWEEN_SESSIONS = 0.01
"""Relative standard deviation between sessions, if no better value is available: clocks, temperature, other
load and memory placement change from day to day, which the spread within one day does not include."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A run prepared for comparison."""

    name: str
    result: Result
    conditions: Mapping[str, Any]
    knows_stack: bool
    """Whether facts about the hosts were captured."""
    provenance: Provenance


def compare_runs(
    a: FinishedRun,
    b: FinishedRun,
    *,
    across: Sequence[str] = (),
    max_regression: float | None = None,
    between_sessions: float = BETWEEN_SESSIONS,
) -> Result:
    """Compare B with A; `across` lists the keys, or sections of keys, that are meant to differ.

    `between_sessions`, the relative standard deviation between sessions, is included in every interval.

    Raises:
        UsageError: the runs differ in other keys, or do not differ in one of `across`; or the standard
            deviation is not in [0, 1). If the runs differ, a gate (`max_regression`, 0.02 is 2 %) answers
            CANNOT TELL instead.
    """
    if not 0 <= between_sessions < 1:
        raise UsageError(f"{between_sessions} is not a fraction in [0, 1)", place="--between-sessions")
    unlike = differing_keys(a.conditions, b.conditions)
    stated = tuple(key for key in unlike if any(covers(named, key.key) for named in across))
    others = tuple(key for key in unlike if key not in stated)
    _refuse_idle(across, unlike)
    if others and max_regression is None:
        raise _refused(a, b, others)
    comparison = _side_by_side(
        a,
        b,
        stated=stated,
        others=others,
        max_regression=max_regression,
        between_sessions=between_sessions,
    )
    return _result(comparison, a, b)


def _refuse_idle(across: Sequence[str], unlike: Sequence[DifferingKey]) -> None:
    for named in across:
        if not any(covers(named, key.key) for key in unlike):
            names = ", ".join(key.key for key in unlike) or "nothing"
            raise UsageError(
                f"the runs do not differ in {named}",
                place=f"--across {named}",
                next_step=f"They differ in {names}",
            )


def _refused(a: FinishedRun, b: FinishedRun, others: Sequence[DifferingKey]) -> UsageError:
    keys = list(dict.fromkeys(key.key for key in others))
    if len(keys) > MOST_KEYS:
        keys = list(dict.fromkeys(key.rpartition(".")[0] or key for key in keys))
    return UsageError(
        f"the runs differ in {'; '.join(key.text for key in others)}",
        place=f"{a.name} and {b.name}",
        next_step=(
            "Compare runs with the same conditions, or state the intended difference: "
            f"{' '.join(f'--across {key}' for key in keys)}"
        ),
    )


def _side_by_side(
    a: FinishedRun,
    b: FinishedRun,
    *,
    stated: tuple[DifferingKey, ...],
    others: tuple[DifferingKey, ...],
    max_regression: float | None,
    between_sessions: float,
) -> SideBySide:
    labels = [key.key.rpartition(".")[2] for key in stated]
    is_same_work = not any(covers(work, key.key) for work in OTHER_WORK for key in stated)
    of_runs = [[m for m in x.result.measures if is_same_work or m.name not in STEP_TIMES] for x in (a, b)]
    measures_a, measures_b = (comparable(of_run, labels) for of_run in of_runs)
    sides = ComparedRun.of(a.result, a.name), ComparedRun.of(b.result, b.name)
    invalid = next((f"{side.name} is INVALID" for side in sides if side.validity == "INVALID"), None)
    measures = compare_measures(
        measures_a,
        measures_b,
        clocks=(clocks_of(a.result), clocks_of(b.result)),
        doubts=(partial(doubts_at, a.result), partial(doubts_at, b.result)),
        pairing=Pairing(between_sessions=between_sessions),
        refused=invalid or ("the runs differ" if others else None),
    )
    return SideBySide(
        a=sides[0],
        b=sides[1],
        is_interleaved=False,
        measures=measures,
        across=stated,
        unlike=others,
        max_regression=max_regression,
        between_sessions=between_sessions,
        lost=tuple(lost_in_b(measures_a, measured(of_runs[1], labels))),
        notes=(*_unknown(a, b), *only_in_one(measures_a, measures_b)),
    )


def _unknown(a: FinishedRun, b: FinishedRun) -> Iterator[str]:
    """Yield what is not known of a run, or differs without ruling out a comparison."""
    yield from (f"the versions and machine of {x.name} are not known" for x in (a, b) if not x.knows_stack)
    versions = [side.result.gpuproof_version for side in (a, b)]
    if versions[0] != versions[1]:
        yield f"{a.name} was measured with gpuproof {versions[0]}, {b.name} with {versions[1]}"


def _result(comparison: SideBySide, a: FinishedRun, b: FinishedRun) -> Result:
    judgement = judge(comparison)
    conditions = {key: value for key, value in a.conditions.items() if b.conditions.get(key) == value}
    sides = (a.result, b.result)
    result = Result(
        suite=NAME,
        run_id=f"{a.result.run_id} and {b.result.run_id}",
        gpuproof_version=__version__,
        validity=min((side.validity for side in sides), key=FROM_WORST.index),
        verdict=judgement.word,
        headline=headline(comparison),
        exit_code=judgement.exit_code,
        num_launches=sum(side.num_launches for side in sides),
        num_planned=sum(side.num_planned for side in sides),
        conditions=conditions,
        doubts=tuple(doubt for side in sides for doubt in side.doubts),
        failures=(),
        measures=tuple(compared_measures(comparison.measures)),
        detail=to_json(comparison),
    )
    return as_simulated(result) if any(side.conditions.get(CONDITION) for side in sides) else result


def page_of(result: Result) -> Page:
    """Lay out a comparison using only its result."""
    comparison = from_json(SideBySide, result.detail, place="the comparison")
    page = comparison_page(comparison, judge(comparison))
    if page.verdict is None or not result.conditions.get(CONDITION):
        return page
    return marked(replace(page, verdict=replace(page.verdict, word=result.verdict)))
