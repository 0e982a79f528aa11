"""The page of a recipe."""

from __future__ import annotations

from gpuproof import units
from gpuproof.records.codec import from_json
from gpuproof.records.page import Column, Page, Table, table
from gpuproof.records.result import WHOLE, Result
from gpuproof.suites.recipe.conclude import LaunchRow, RecipeDetail
from gpuproof.suites.recipe.options import OptionsInEffect
from gpuproof.suites.recipe.profile import sections_of_profile
from gpuproof.suites.recipe.ranks import sections_of_ranks
from gpuproof.suites.sections import benchmark_page


def page(result: Result) -> Page:
    """Lay out figures, options, launches, readings and the trace."""
    detail = from_json(RecipeDetail, result.detail, place="result.json: detail")
    ranks = detail.ranks
    return benchmark_page(
        result,
        detail.common,
        *([] if detail.options is None else [_options(detail.options)]),
        *([_launches(detail.launches)] if len(detail.launches) > 1 else []),
        *([] if ranks is None else sections_of_ranks(ranks, num_launches=len(detail.launches))),
        after=() if detail.profile is None else sections_of_profile(detail.profile),
        num_measures=sum(measure.subject == WHOLE for measure in result.measures),
    )


def _options(options: OptionsInEffect) -> Table:
    return table(
        "Options in effect",
        [("options", options.summary), ("observed", options.observed)],
        Column.of("", lambda row: row[0], align="left"),
        Column.of("", lambda row: row[1], align="left", folds=True),
    )


def _launches(rows: tuple[LaunchRow, ...]) -> Table:
    return table(
        "Launches",
        rows,
        Column.of("launch", lambda row: str(row.replicate + 1)),
        Column.of("throughput", lambda row: row.rate, is_optional=True),
        Column.of("mean step", lambda row: units.seconds(row.mean_step_s, digits=4)),
        Column.of("steps", lambda row: units.count(row.num_steps)),
        Column.of("window", lambda row: units.seconds(row.window_s)),
    )
