"""The pictures of a comparison: differences with intervals and margin, and the launches of both sides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuproof.analysis.comparing.sides import side_of, title_of
from gpuproof.groups import grouped
from gpuproof.records.page import Axis, Chart, Reference
from gpuproof.records.result import Measure
from gpuproof.units import share
from gpuproof.verdict.measure_charts import MOST_ROWS, chart_of_launches, intervals, titled

RATIO = "B over A"
MOST_PAIRS = 3
"""Measures whose launches are drawn."""


def comparison_charts(measures: Sequence[Measure], max_regression: float | None) -> Iterator[Chart]:
    """Yield B over A of every measure, and the launches of the first few."""
    sides = list(grouped((title_of(measure), measure) for measure in measures).items())
    ratios = [
        (title, measure)
        for title, of_title in sides[:MOST_ROWS]
        for measure in of_title
        if side_of(measure) == RATIO and measure.value is not None
    ]
    if ratios:
        limit = max_regression or 0.0
        margin = {1 - limit: f"{share(limit)} less", 1 + limit: f"{share(limit)} more"} if limit else {}
        lines = [Reference(label=label, x=x) for x, label in {1.0: "no difference", **margin}.items()]
        yield intervals("B over A, with intervals", Axis(label=RATIO), ratios, *lines)
    for title, of_title in sides[:MOST_PAIRS]:
        both = {side_of(measure): measure for measure in of_title if side_of(measure) in ("A", "B")}
        if chart := chart_of_launches(f"Launches of A and B: {titled(title)}", both):
            yield chart
