"""Combine results of several recipes in one run: each is evaluated by its suite, then compared.

The recipes are the points of a sweep, the sizes tried by a search, or the tests of the load suite.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuproof.base.groups import grouped
from gpuproof.config.matrix import short_names
from gpuproof.launches.launch import Launch, summarize_launch
from gpuproof.launches.point_measures import THROUGHPUT, PointMeasures
from gpuproof.readings.evidence import Evidence
from gpuproof.records.codec import from_json, to_json
from gpuproof.records.result import WHOLE, Doubt, Measure, Result
from gpuproof.suites.base import Conclusion, LaunchKey
from gpuproof.suites.points.plan import Point
from gpuproof.suites.points.ranking import BatchLimits, Ranking, exports_of_points, rank
from gpuproof.suites.registry import find_suite
from gpuproof.suites.results import benchmark_result, positions_in_time, shared_conditions
from gpuproof.suites.sections import (
    Common,
    PointLabel,
    at_point,
    headline,
    notes_of_setup,
    torn_notes,
    without_effect,
)
from gpuproof.verdict.doubts.rules import invalid_first

EPOCHS = "metrics_epoch.jsonl"
"""File that is written for training and inference, but not for requests."""
NOT_RANKED = "the tests of the load suite use different models and kinds of work, so they are not ranked"


@dataclass(frozen=True, slots=True, kw_only=True)
class PointResult:
    """One point, as evaluated by its own suite."""

    point: Point
    figures: PointMeasures
    result: Result
    """The point's measures, with its name and labels, and each launch's position in the entire run."""
    summary: Mapping[str, Any]
    """Content of the point's run_summary.json."""
    epochs: Callable[[], str]
    """Creates the point's metrics_epoch.jsonl."""
    launches: tuple[Launch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PointsDetail:
    """Data for the multi-point page that is not part of the result."""

    common: Common
    points: tuple[PointMeasures, ...]
    num_headlines: int
    """Number of measures for the entire run, which precede the measures of the points."""
    is_search: bool = False
    """Whether the points were chosen based on the results of earlier points."""


def conclude_points(
    evidence: Evidence, points: Iterable[Point], *, refused: Collection[str] = ()
) -> Iterator[PointResult]:
    """Evaluate each point lazily, using its recipe's suite.

    The points in `refused` were expected to fail.
    """
    positions = positions_in_time(evidence.launches)
    for point in points:
        yield _conclude_point(evidence, point, positions, is_refused=point.case_id in refused)


def _conclude_point(
    evidence: Evidence, point: Point, positions: Mapping[LaunchKey, int], *, is_refused: bool
) -> PointResult:
    launched = replace(evidence.only(case_id=point.case_id), config=point.config)
    conclusion = find_suite(point.config).conclude(launched)
    measures = _point_measures(conclusion.result, point, positions)
    result = replace(conclusion.result, measures=measures)
    figures = _values(result, point)
    summary, epochs = dict(_content(conclusion, "run_summary.json").value), _content(conclusion, EPOCHS)
    if is_refused:
        num_launched = len(launched.launches)
        figures = replace(figures, refused=True, num_planned=num_launched, failures=())
        summary |= {"num_planned": num_launched, "failures": []}
    return PointResult(
        point=point,
        figures=figures,
        result=result,
        summary=summary,
        epochs=epochs.make if epochs is not None else str,
        launches=tuple(
            launch for records in launched.launches if (launch := summarize_launch(records)) is not None
        ),
    )


def read_values(result: Result) -> tuple[PointMeasures, ...]:
    """Return every recipe that a result covers, with its measures; none if there are no recipes."""
    points = [from_json(PointMeasures, point, place="points") for point in result.detail.get("points", ())]
    of_points = result.measures[result.detail.get("num_headlines", 0) :]
    by_case = grouped((measure.case, measure) for measure in of_points if measure.subject == WHOLE)
    if len(points) == 1:  # a single recipe does not need a case name
        by_case = {points[0].case_id: [measure for of_case in by_case.values() for measure in of_case]}
    return tuple(replace(point, measures=tuple(by_case.get(point.case_id, ()))) for point in points)


def _values(result: Result, point: Point) -> PointMeasures:
    """Return a result's measures as measures of the point, including the point's name."""
    figures = next(iter(read_values(result)), None) or _values_of_requests(result, point)
    return replace(figures, case_id=point.case_id, assignment=point.assignment, doubts=result.doubts)


def _content(conclusion: Conclusion, name: str) -> Any:
    return next((export.content for export in conclusion.exports if export.name == name), None)


def _values_of_requests(result: Result, point: Point) -> PointMeasures:
    config = point.config
    return PointMeasures(
        case_id=point.case_id,
        assignment=point.assignment,
        kind=config.kind,
        model=config.model.name,
        batch_size=config.serving.max_batch,
        item="requests",
        items_per_sample=1,
        device=result.conditions["device"],
        num_devices=None,
        num_launches=result.num_launches,
        num_planned=result.num_planned,
        validity=result.validity,
        failures=result.failures,
        measures=result.measures,
    )


def _point_measures(result: Result, point: Point, positions: Mapping[LaunchKey, int]) -> tuple[Measure, ...]:
    names = short_names(list(point.assignment))
    labels = {names[key]: value for key, value in point.assignment.items()}
    return tuple(
        replace(
            measure,
            case=point.case_id,
            labels={**measure.labels, **labels},
            launches=tuple(replace(x, order=positions[point.case_id, x.replicate]) for x in measure.launches),
        )
        for measure in result.measures
    )


def conclusion_of_points(
    suite: str,
    evidence: Evidence,
    points: Sequence[PointResult],
    *,
    title: Sequence[str],
    num_planned: int,
    notes: Iterable[str] = (),
    labels: tuple[PointLabel, ...] = (),
    limits: BatchLimits | None = None,
    measures: Sequence[Measure] = (),
    is_ranked: bool = True,
) -> Conclusion:
    """Compare points; the device's name is inserted after the first part of `title`.

    `measures` come after the best throughput and before the measures of the points.
    """
    figures = tuple(point.figures for point in points)
    ranking = rank(figures) if is_ranked else Ranking(best=None, missing=NOT_RANKED, against_best={})
    launches = [launch for point in points for launch in point.launches]
    notes = [*_ranking_notes(ranking, launches), *notes]
    common = common_of_points(evidence, points, title=title, notes=notes, labels=labels, is_ranked=is_ranked)
    headlines = [*_best(ranking), *measures]
    states = tuple(point.without_measures for point in figures)
    is_search = limits is not None
    detail = PointsDetail(common=common, points=states, num_headlines=len(headlines), is_search=is_search)
    result = result_of_points(
        suite,
        evidence,
        points,
        measures=[*headlines, *(m for point in points for m in point.result.measures)],
        num_planned=num_planned,
        detail=detail,
        headline_text=_headline(headlines, figures),
    )
    exports = exports_of_points(evidence, points, ranking, result, limits=limits, is_ranked=is_ranked)
    return Conclusion(result=result, exports=tuple(exports))


def _headline(measures: Sequence[Measure], points: Sequence[PointMeasures]) -> str:
    num_measured = sum(point.num_launches > 0 for point in points)
    return (headline(measures) if num_measured else "") or f"{num_measured} of {len(points)} points"


def result_of_points(
    suite: str,
    evidence: Evidence,
    points: Sequence[PointResult],
    *,
    measures: Sequence[Measure],
    num_planned: int,
    detail: Any,
    headline_text: str | None = None,
) -> Result:
    """Return the result of a run of several recipes, with all their warnings and failures.

    `detail` is additional data for the page; if `headline_text` is not given, the first measure is the
    headline.
    """
    return benchmark_result(
        suite,
        evidence,
        measures=measures,
        doubts=_doubts(points),
        failures=[at_point(f, x.point.case_id) for x in points for f in x.figures.failures],
        num_launches=sum(point.figures.num_launches for point in points),
        num_planned=num_planned,
        conditions=shared_conditions([point.result for point in points]),
        detail=to_json(detail),
        headline_text=headline_text,
        is_of_points=True,
    )


def common_of_points(
    evidence: Evidence,
    points: Sequence[PointResult],
    *,
    title: Sequence[str],
    notes: Iterable[str] = (),
    labels: tuple[PointLabel, ...] = (),
    is_ranked: bool = False,
) -> Common:
    """Return benchmark pages' common content; the device's name follows the first part of `title`."""
    launches = [launch for point in points for launch in point.launches]
    return Common(
        title=", ".join([title[0], *(x.setup.device.name for x in launches[:1]), *title[1:]]),
        work=", ".join(title),
        labels=labels,
        names_cases=True,
        is_ranked=is_ranked,
        not_applied=without_effect([x.setup for x in launches], evidence.description["origins"]),
        notes=(*notes, *notes_of_setup(launches), *torn_notes(evidence.launches)),
        **_read_at_points(points),
    )


def _ranking_notes(ranking: Ranking, launches: Sequence[Launch]) -> Iterator[str]:
    if ranking.missing not in (None, NOT_RANKED) and launches:
        yield f"no best point: {ranking.missing}"
    elif ranking.left_out:
        first, *more = ranking.left_out.values()
        yield f"not ranked: {first}{f', and {len(more)} more' if more else ''}"
    reasons = dict.fromkeys(x.missing for x in ranking.against_best.values() if x.missing)
    yield from (f"points were not compared: {reason}" for reason in reasons)


def _best(ranking: Ranking) -> list[Measure]:
    """Return the best point's throughput, if any, under a separate name."""
    best = None if ranking.best is None else ranking.best.measure(THROUGHPUT)
    return (
        []
        if best is None
        else [replace(best, name="best throughput", detail=f"at {best.case}; {best.detail}")]
    )


def _read_at_points(points: Iterable[PointResult]) -> dict[str, Any]:
    """Return the readings during the launches of all points."""
    shared = [from_json(Common, point.result.detail["common"]) for point in points]
    return {
        "devices": tuple(row for common in shared for row in common.devices),
        "remarks": tuple(remark for common in shared for remark in common.remarks),
        "was_read": any(common.was_read for common in shared),
        "least_coverage": min((s for one in shared if (s := one.least_coverage) is not None), default=None),
    }


def _doubts(points: Iterable[PointResult]) -> tuple[Doubt, ...]:
    """Return each warning shared by several points once, with the first point that has it."""
    by_code: dict[str, list[tuple[Doubt, str]]] = {}
    for point in points:
        if point.figures.num_launches:
            for doubt in point.result.doubts:
                by_code.setdefault(doubt.code, []).append((doubt, point.point.case_id))
    doubts = []
    for same in by_code.values():
        first, case_id = min(same, key=lambda item: item[0].validity != "INVALID")
        more = f", and at {len(same) - 1} more" if len(same) > 1 else ""
        doubts.append(replace(first, reason=f"{first.reason} (at {case_id}{more})"))
    return invalid_first(doubts)
