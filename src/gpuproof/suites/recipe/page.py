"""The page of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from gpuproof.base import units
from gpuproof.launches.point_figures import STEP, STEPS, THROUGHPUT, WINDOW
from gpuproof.records.codec import from_json
from gpuproof.records.page import Page, Pivot, Section, Table
from gpuproof.records.page.tables import Column, by_launch, table
from gpuproof.records.result import WHOLE, Result
from gpuproof.suites.recipe.charts import recipe_charts
from gpuproof.suites.recipe.conclude import RecipeDetail
from gpuproof.suites.recipe.options import OptionsInEffect
from gpuproof.suites.recipe.ranks import sections_of_ranks
from gpuproof.suites.sections import benchmark_page


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
