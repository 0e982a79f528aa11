"""The page for a matrix: configurations, the best one, memory and time trade-offs, and all cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from gpuproof.base import units
from gpuproof.base.groups import grouped
from gpuproof.records.codec import from_json
from gpuproof.records.page import Axis, Cell, MeasureCell, Page, Pivot, Section, Series, Text
from gpuproof.records.page.tables import Column, measure_cell, pivot_of_rows
from gpuproof.records.result import Result
from gpuproof.suites.matrix.case_values import CaseValues
from gpuproof.suites.matrix.compare import CONFIDENCE, ConfigurationValues, memory_cost
from gpuproof.suites.matrix.conclude import MatrixDetail
from gpuproof.suites.matrix.measures import ENERGY, MEMORY, RESIDENT, WALL
from gpuproof.suites.sections import benchmark_page
from gpuproof.verdict.page import plain_chart

MOST_ROWS = 50
"""Maximum number of cases listed if all succeeded; result.json contains every case."""


def page(result: Result) -> Page:
    """Lay out the cases of a matrix."""
    detail = from_json(MatrixDetail, result.detail, place="result.json: detail")
    by_case = grouped((measure.case, measure) for measure in result.measures)
    measured = (replace(x, measures=tuple(by_case.get(x.name, ()))) for x in detail.configurations)
    detail = replace(detail, configurations=tuple(measured))
    best = Text(title="Best", lines=tuple(_best(detail)))
    sections = (_configurations(detail), best, *_fronts(detail), _cases(detail))
    return benchmark_page(result, detail.common, *sections, num_measures=0)


def _configurations(detail: MatrixDetail) -> Pivot:
    metric, best = detail.ranking.metric, detail.ranking.best

    def figure(title: str, name: str, *, is_optional: bool = True) -> Column:
        return Column.of(title, lambda one: measure_cell(one.measure(name)), is_optional=is_optional)

    return pivot_of_rows(
        "Configurations",
        detail.configurations,
        Column.of(
            "configuration",
            lambda one: Cell(one.name, "strong" if one.name == best else "plain"),
            align="left",
            folds=True,
        ),
        Column.of("launches", lambda one: f"{one.num_done}/{one.num_launches}"),
        *([figure(metric, metric, is_optional=False)] if metric != WALL else []),
        Column.of(f"{CONFIDENCE:.0%} interval", _interval),
        figure("time", WALL, is_optional=False),
        figure("GPU memory", MEMORY),
        Column.of("of", lambda one: one.memory_basis, align="left", is_optional=True),
        figure("resident", RESIDENT),
        figure("energy", ENERGY),
    )


def _energy(value_j: float | None) -> str:
    return units.MISSING if value_j is None else f"{units.significant(value_j, 4)} J"


def _interval(one: ConfigurationValues) -> str:
    if one.interval is None:
        return units.MISSING
    return " – ".join(units.significant(end, 4) for end in one.interval)


def _best(detail: MatrixDetail) -> Iterator[str]:
    """Report which configuration is best, or why there is no best one."""
    ranking = detail.ranking
    way = "highest" if ranking.better == "higher" else "lowest"
    if ranking.best is not None:
        yield (
            f"{ranking.best} has the {way} {ranking.metric}: confirmed against each other "
            f"configuration{' that can be used' if ranking.left_out else ''}, at {CONFIDENCE:.0%} "
            f"over all {ranking.num_compared} together"
        )
    else:
        yield f"no best configuration by {ranking.metric}: {ranking.missing}"
    if ranking.left_out:
        yield f"neither best nor on a front: {'; '.join(ranking.left_out.values())}"
    if len(detail.configurations) > 1:
        for what, front in (("memory", detail.front_by_memory), ("time", detail.front_by_time)):
            if front and not (what == "time" and ranking.metric == WALL):
                yield (
                    f"{ranking.metric} against {what}, using only confirmed differences: the "
                    f"Pareto front is {', '.join(front)}"
                )


Cost = tuple[str, str, tuple[str, ...], str]
"""Name and unit of the cost, its Pareto front, and how it is measured."""


def _fronts(detail: MatrixDetail) -> Iterator[Section]:
    """Plot the compared metric against its cost; the Pareto front is a separate series."""
    ranking = detail.ranking
    costs: tuple[Cost, ...] = (
        ("memory", "B", detail.front_by_memory, memory_cost(detail.configurations)),
        ("time", "s", detail.front_by_time, WALL),
    )
    if ranking.metric == WALL:
        costs = costs[:1]
    for what, unit, front, cost in costs:
        points = [
            (one.name, (float(spent), one.mean))
            for one in detail.configurations
            if one.mean is not None and (spent := one.value(cost)) is not None
        ]
        if len(points) < 2:
            continue
        on = tuple(sorted(point for name, point in points if name in front))
        off = tuple(point for name, point in points if name not in front)
        named = (("on the Pareto front", on), ("others", off))
        series = [Series(name=name, points=of) for name, of in named if of]
        x, y = Axis(label=what, unit=unit), Axis(label=ranking.metric)
        yield plain_chart(f"{ranking.metric} against {what}", "scatter", x, y, series)


def _cases(detail: MatrixDetail) -> Section:
    """Lay out launches; the results of successful launches are in their configuration's measures."""
    cases, by_name = detail.cases, {one.name: one for one in detail.configurations}
    shown = [case for case in cases if case.status != "done"]
    shown = [*shown, *(case for case in cases if case.status == "done")][: max(MOST_ROWS, len(shown))]
    first = {_status_text(case): case.case_id for case in reversed(shown)}
    title = "Cases" if len(shown) == len(cases) else f"Cases ({len(shown)} of {len(cases)}, failed first)"

    def figure(
        title: str, name: str, text: Callable[[CaseValues], str], *, is_optional: bool = True
    ) -> Column:
        def cell(case: CaseValues) -> MeasureCell | str:
            measure = by_name[case.configuration].measure(name) if case.status == "done" else None
            return measure_cell(measure, text(case)) if measure and measure.launches else text(case)

        return Column.of(title, cell, is_optional=is_optional)

    return pivot_of_rows(
        title,
        shown,
        Column.of("case", lambda case: case.case_id, align="left", folds=True),
        Column.of("launch", lambda case: str(case.replicate + 1)),
        figure("time", WALL, lambda case: units.seconds(case.wall_s), is_optional=False),
        figure("GPU memory", MEMORY, lambda case: units.memory(case.memory.peak_bytes)),
        figure("resident", RESIDENT, lambda case: units.memory(case.resident.peak_bytes)),
        figure("energy", ENERGY, lambda case: _energy(case.energy_j)),
        Column.of("on", lambda case: ", ".join(case.devices), align="left", is_optional=True),
        Column.of("", lambda case: _status_cell(case, first), align="left", folds=True),
    )


def _status_cell(case: CaseValues, first: Mapping[str, str]) -> Cell:
    """Report how a case ended; a text that `first` maps to an earlier case is not repeated."""
    if case.status == "done":
        return Cell("done", "good")
    text = _status_text(case)
    return Cell(text if first[text] == case.case_id else f"as {first[text]}", "bad")


def _status_text(case: CaseValues) -> str:
    status = "" if case.exit_status is None else f" (status {case.exit_status})"
    return f"{case.failure or case.status}{status}"[:160]
