"""The page of a recipe.

The pictures of a recipe's measures: launches, what a step and the memory are made of, and the roofline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from gpuproof.base import units
from gpuproof.launches.point_figures import STEP, STEPS, THROUGHPUT, WINDOW
from gpuproof.records.codec import from_json
from gpuproof.records.page import Chart, Page, Pivot, Section, Table
from gpuproof.records.page.tables import Column, by_launch, table
from gpuproof.records.result import WHOLE, Measure, Result
from gpuproof.suites.recipe.conclude import RecipeDetail
from gpuproof.suites.recipe.measures import PART, PHASE
from gpuproof.suites.recipe.options import OptionsInEffect
from gpuproof.suites.recipe.ranks import sections_of_ranks
from gpuproof.suites.recipe.roofline import Ceiling, roofline_chart
from gpuproof.suites.sections import benchmark_page
from gpuproof.verdict.measure_charts import bars, chart_of_launches, titled


def page(result: Result) -> Page:
    """Lay out figures, options, launches, readings and the trace."""
    detail = from_json(RecipeDetail, result.detail, place="result.json: detail")
    ranks, of_ranks = detail.ranks, [measure for measure in result.measures if "rank" in measure.labels]
    return benchmark_page(
        result,
        detail.common,
        *recipe_charts(result.measures),
        *([] if detail.options is None else [_options(detail.options)]),
        *([_launches(result)] if result.num_launches > 1 else []),
        *([] if ranks is None else sections_of_ranks(ranks, of_ranks, num_launches=result.num_launches)),
        after=_profile(detail.profile),
        num_measures=detail.num_shown,
    )


def _profile(profile: Mapping[str, Any] | None) -> Iterator[Section]:
    if profile is not None:
        from gpuproof.suites.recipe.profile import Profiled, sections_of_profile

        yield from sections_of_profile(from_json(Profiled, profile, place="result.json: detail"))


def _options(options: OptionsInEffect) -> Table:
    return table(
        "Options in effect",
        [("options", options.summary), ("observed", options.observed)],
        Column.of("", lambda row: row[0], align="left"),
        Column.of("", lambda row: row[1], align="left", folds=True),
    )


def _launches(result: Result) -> Pivot:
    by_name = {measure.name: measure for measure in result.measures if measure.subject == WHOLE}
    texts: Mapping[str, tuple[str, Callable[[float], str]]] = {
        THROUGHPUT: ("throughput", lambda value: units.amount(value, by_name[THROUGHPUT].unit)),
        STEP: ("mean step", partial(units.seconds, digits=4)),
        STEPS: ("steps", lambda value: units.count(int(value))),
        WINDOW: ("window", units.seconds),
    }
    columns = [(title, by_name[name], text) for name, (title, text) in texts.items() if name in by_name]
    return by_launch("Launches", columns)


def recipe_charts(measures: Sequence[Measure]) -> Iterator[Chart]:
    """Yield a chart of each question that the measures answer."""
    whole = [measure for measure in measures if measure.subject == WHOLE]
    by_name = {measure.name: measure for measure in reversed(whole)}
    if whole and (launches := chart_of_launches(f"{titled(whole[0].name)} of each launch", {"": whole[0]})):
        yield launches
    phases = [measure for measure in whole if PHASE in measure.labels]
    if chart := bars("Phases of a step", [(str(m.labels[PHASE]), m) for m in phases], "a step"):
        yield chart
    parts = [(str(measure.labels[PART]), measure) for measure in whole if PART in measure.labels]
    peak = [("peak that was measured", by_name["peak memory"])] if "peak memory" in by_name else []
    if parts and (chart := bars("Memory of a rank: estimated parts", [*parts, *peak], "memory")):
        yield chart
    compute, memory = by_name.get("GEMM ceiling"), by_name.get("memory ceiling")
    if compute is not None and memory is not None and compute.value and memory.value:
        reached, intensity = by_name.get("model FLOP/s"), by_name.get("arithmetic intensity")
        yield roofline_chart(
            Ceiling("measured", compute.value, memory.value),
            None if reached is None else reached.value,
            None if intensity is None else intensity.value,
            title="Roofline of a device",
        )
