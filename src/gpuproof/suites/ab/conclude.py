"""Results of alternating launches: B vs A by pairs, confirmed regressions, verdict and exit code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpuproof.base import units
from gpuproof.base.errors import ExitCode
from gpuproof.comparison.conditions import DifferingKey
from gpuproof.comparison.judge import ComparedRun, Judgement, SideBySide, compared_measures, judge
from gpuproof.comparison.measures import ComparedMeasure, MeasureKey, clocks_of, comparable, compare_measures
from gpuproof.comparison.page import headline
from gpuproof.comparison.winners import Pairing
from gpuproof.config.models import RunConfig
from gpuproof.readings.evidence import Evidence
from gpuproof.records.codec import to_json
from gpuproof.records.result import NOTHING_MEASURED, LaunchValue, Measure, Result
from gpuproof.statistics.comparison import compare_pairs, is_beyond, not_compared
from gpuproof.suites.ab.plan import (
    BETTER,
    CONFIRMED,
    NAME,
    RATE,
    AbOptions,
    Course,
    LaunchFigures,
    course,
    have_ratio,
    measures_in,
    measures_lost,
    pair_values,
    points_of,
    read_options,
)
from gpuproof.suites.base import Conclusion, LaunchKey, launch_key
from gpuproof.suites.points.results import PointResult, conclude_points, conclusion_of_points
from gpuproof.suites.results import compared_values, positions_in_time

MAIN = "main"
"""The case name given to the measures of both sides, so that they are shown next to each other."""
JUDGEMENT = "judgement"
"""Key of the detail that explains the comparison's verdict."""


def conclude(evidence: Evidence) -> Conclusion:
    """Return the result of comparing two configurations, and its files."""
    config: RunConfig = evidence.config
    options = read_options(config)
    concluded = list(conclude_points(evidence, points_of(config, options).values()))
    figures = {launch_key(launch.case): compared_values(launch) for launch in evidence.launches}
    taken = course(options, figures)
    comparison = _side_by_side(evidence, options, taken, figures, concluded)
    conclusion = conclusion_of_points(
        NAME,
        evidence,
        concluded,
        title=[
            _work(config),
            f"{comparison.b.name} against {comparison.a.name}",
        ],
        num_planned=2 * taken.total,
        notes=[*_without_effect(concluded, comparison), *_notes(options, taken)],
        measures=list(compared_measures(comparison.measures)),
        is_ranked=False,
    )
    result = _with_verdict(conclusion.result, comparison, taken)
    return Conclusion(result=result, exports=conclusion.exports)


def _work(config: RunConfig) -> str:
    if config.kind == "serving" and config.serving.target == "endpoint":
        return f"requests to {config.serving.endpoint.model}"
    return f"{config.model.name} {config.kind} on {config.data.name}"


def _side_by_side(
    evidence: Evidence,
    options: AbOptions,
    taken: Course,
    figures: Mapping[LaunchKey, LaunchFigures],
    concluded: Sequence[PointResult],
) -> SideBySide:
    sides = [
        ComparedRun.of(point.result, name)
        for point, name in zip(concluded, (options.a_name, options.b_name), strict=True)
    ]
    measures = [_measures(evidence, point, figures, taken) for point in concluded]
    clocks = [
        {(MAIN, replicate): clock for (_, replicate), clock in clocks_of(point.result).items()}
        for point in concluded
    ]
    pilot = len(pair_values(figures, RATE, range(options.pilot_pairs))[0]) or options.pilot_pairs
    compared = compare_measures(
        measures[0],
        measures[1],
        clocks=(clocks[0], clocks[1]),
        doubts=(lambda _: sides[0].doubts, lambda _: sides[1].doubts),
        pairing=Pairing(is_interleaved=True, num_pilot=pilot),
        refused=next((f"{x.name} is INVALID" for x in sides if x.validity == "INVALID"), None),
    )
    return SideBySide(
        a=sides[0],
        b=sides[1],
        is_interleaved=True,
        measures=tuple(_confirm(measure, figures, taken, options.limit) for measure in compared),
        across=tuple(_differences(evidence.config, options)),
        max_regression=options.max_regression,
        lost=tuple(measures_lost(figures)),
        notes=tuple(
            f"{name} is not compared: not every launch measured it" for name in measures_lost(figures)
        ),
    )


def _measures(
    evidence: Evidence, point: PointResult, figures: Mapping[LaunchKey, LaunchFigures], taken: Course
) -> dict[MeasureKey, Measure]:
    """Return the comparable measures of a side's first run."""
    positions, side = positions_in_time(evidence.launches), point.point.case_id
    measures = []
    for name in measures_in(figures):
        launches = tuple(
            LaunchValue(
                replicate=pair, order=positions[side, pair], value=figures[side, pair][name], start="exec"
            )
            for pair in range(taken.num_pairs)
            if name in figures.get((side, pair), {})
        )
        unit = f"{point.figures.item}/s" if BETTER[name] == "higher" else "s"
        measures.append(
            Measure(
                name=name,
                value=None,  # launches are compared one by one: the comparison contains their geometric mean
                unit=unit,
                text="",
                case=MAIN,
                statistic="geometric mean of launches",
                better=BETTER[name],
                launches=launches,
            )
        )
    return comparable(measures)


def _confirm(
    measure: ComparedMeasure, figures: Mapping[LaunchKey, LaunchFigures], taken: Course, limit: float
) -> ComparedMeasure:
    """Add a measure's confirmation if the first run shows a regression in it.

    Fewer pairs than planned can confirm a regression, but cannot clear it.
    """
    if measure.name not in taken.suspected or measure.comparison.ratio is None:
        return measure
    again = pair_values(figures, measure.name, range(taken.num_pairs, taken.total))
    num = len(again[0])
    if not have_ratio(*again):
        reason = (
            f"a launch that had to confirm the regression has {measure.name} 0, for which no ratio exists"
        )
        return replace(measure, confirmation=not_compared(reason, num_a=num, num_b=num, confidence=CONFIRMED))
    confirmation = compare_pairs(*again, better=measure.better, confidence=CONFIRMED)
    if num < taken.num_pairs and not is_beyond(confirmation, limit, better=measure.better):
        reason = f"only {num} of the {taken.num_pairs} pairs that had to confirm the regression were measured"
        confirmation = not_compared(reason, num_a=num, num_b=num, confidence=CONFIRMED)
    return replace(measure, confirmation=confirmation)


def _differences(config: RunConfig, options: AbOptions) -> Iterator[DifferingKey]:
    values = config.model_dump(mode="json")
    for key in dict.fromkeys([*options.a, *options.b]):
        section, _, name = key.partition(".")
        base = values[section][name] if name else values[section]
        a, b = options.a.get(key, base), options.b.get(key, base)
        yield from _mismatch(key, a, b)


def _mismatch(key: str, a: Any, b: Any) -> Iterator[DifferingKey]:
    if isinstance(a, dict) and isinstance(b, dict):
        for name in dict.fromkeys([*a, *b]):
            yield from _mismatch(f"{key}.{name}", a.get(name), b.get(name))
    elif a != b:
        yield DifferingKey(key=key, a=str(a), b=str(b))


def _with_verdict(result: Result, comparison: SideBySide, taken: Course) -> Result:
    """Return the result with the comparison's verdict; launch failures take precedence."""
    judgement = _judge(comparison, taken)
    detail = {NAME: to_json(comparison), JUDGEMENT: to_json(judgement)}
    result = replace(result, detail={**result.detail, **detail})
    if result.verdict == NOTHING_MEASURED:
        return result
    code = judgement.exit_code if result.exit_code == ExitCode.DONE else result.exit_code
    lacking = [f"no ratio for {measure.title}" for measure in comparison.measures] or [result.headline]
    told = headline(comparison) or lacking[0]
    return replace(result, verdict=judgement.word, exit_code=code, headline=told)


def _judge(comparison: SideBySide, taken: Course) -> Judgement:
    """Judge a comparison; with enough launches, a gate passes unless a larger regression is detected."""
    judgement = judge(comparison)
    if comparison.max_regression is None or taken.is_short or judgement.word != "CANNOT TELL":
        return judgement
    if (
        comparison.lost
        or not comparison.measures
        or not all(_is_whole(measure, taken) for measure in comparison.measures)
    ):
        return judgement
    return Judgement(
        word="NO REGRESSION",
        meaning=f"none above {units.share(comparison.max_regression)} was detected",
        exit_code=ExitCode.DONE,
    )


def _is_whole(measure: ComparedMeasure, taken: Course) -> bool:
    """Report whether as many pairs were measured as the pilot requires, and the confirmation, if any."""
    is_confirmed = measure.confirmation is None or measure.confirmation.ratio is not None
    is_enough = measure.comparison.num_launches_a >= (taken.needed or 0)
    return measure.comparison.ratio is not None and is_enough and is_confirmed


def _without_effect(points: Sequence[PointResult], comparison: SideBySide) -> Iterator[str]:
    """Report which differing key has no effect on a side, making both sides the same program."""
    differing = {unlike.key for unlike in comparison.across}
    for point, side in zip(points, (comparison.a, comparison.b), strict=True):
        reasons = {x.key: x.reason for launch in point.launches for x in launch.setup.not_applied}
        yield from (
            f"{key} had no effect on {side.name}: {reasons[key]}" for key in sorted(differing & set(reasons))
        )


def _notes(options: AbOptions, taken: Course) -> Iterator[str]:
    yield (
        "launches alternated in pairs (A B B A or B A A B, drawn at random), each in a fresh "
        "process, so that effects common to both launches of a pair cancel"
    )
    beyond = "" if options.max_regression is None else f" beyond {units.share(options.limit)}"
    goal = f"a difference of {units.share(options.find)}{beyond}"
    if taken.needed is None:
        yield (
            f"the number of pairs needed to find {goal} is unknown: not all of the "
            f"{options.pilot_pairs} pilot pairs succeeded"
        )
    else:
        capped = f", but max_pairs allows only {taken.num_pairs}" if taken.is_short else ""
        yield (
            f"based on the spread of the first {options.pilot_pairs} pairs, {taken.needed} pairs "
            f"are needed to find {goal}{capped}"
        )
    if taken.suspected:
        yield (
            f"{taken.num_pairs} more pairs had to confirm a regression of {', '.join(taken.suspected)} "
            f"(interval at {CONFIRMED:.0%})"
        )
