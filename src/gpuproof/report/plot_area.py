"""One chart's area in an image: both axes, space for their labels, and the positions of values.

A chart is drawn as rows from the top if its bars are labelled with their series, or if its vertical axis
lists names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isfinite

from gpuproof.records.page import Axis, Chart, Form, Series
from gpuproof.report.axes import Scale, cut_to, named_scale, scale_for
from gpuproof.report.drawing import GAP, LINE, broken, text_width, widest
from gpuproof.report.page_parts import axis_figure, has_named_bars

WIDEST_NAME = 0.36
WIDEST_LABEL = 0.24
"""Maximum widths of texts, as fractions of a column's width."""
FORMS: dict[str, Form] = {"line": "marked", "scatter": "points", "bar": "bar"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotArea:
    """The rectangle that contains the points, in pixels from the top left, and both axes."""

    left: float
    right: float
    top: float
    bottom: float
    x: Scale
    y: Scale

    def x_at(self, value: float) -> float:
        """Return the position of a value along the horizontal axis."""
        return self.left + self.x.share(value) * (self.right - self.left)

    def y_at(self, value: float) -> float:
        """Return the position of a value along the vertical axis."""
        return self.bottom - self.y.share(value) * (self.bottom - self.top)

    def has(self, x: float, y: float) -> bool:
        """Check whether a point has a position."""
        return self.x.has(x) and self.y.has(y)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A chart in its column of a drawing: its axes, and the space it needs around the plot."""

    chart: Chart
    begin: float
    end: float
    """Horizontal extent of the column."""
    is_first: bool
    """Whether names of shaded intervals are shown above the chart; charts below it have the same names."""
    x: Scale
    y: Scale

    @property
    def names(self) -> list[list[str]]:
        """Names of the rows, wrapped into lines."""
        return [broken(name, WIDEST_NAME * (self.end - self.begin)) for name in self.chart.y.names]

    @property
    def labels(self) -> list[tuple[float, list[str]]]:
        """The horizontal reference lines, lowest first, and the lines of text in their labels."""
        lines = sorted((line.y, line.label) for line in self.chart.references if line.y is not None)
        longest = WIDEST_LABEL * (self.end - self.begin)
        return [(y, broken(label, longest)) for y, label in lines if self.y.has(y)]

    @property
    def figures(self) -> list[str]:
        """Values of bars in rows, and of lines that cross rows; shown on the right if there are no ticks."""
        rows: list[list[str]] = [[] for _ in self.chart.y.names]
        for series in self.chart.series if has_bars_in_rows(self.chart) else ():
            name = f"{series.name} " if len(self.chart.series) > 1 else ""
            for value, row in series.points:
                rows[int(row)].append(f"{name}{axis_figure(value, self.chart.x)}")
        return list(map(", ".join, rows)) if has_bars_in_rows(self.chart) else []

    @property
    def width(self) -> float:
        """Width available above and below the plot."""
        return self.end - self.begin - 2 * GAP

    @property
    def left(self) -> float:
        """Width of the space to the left of the plot."""
        if self.names:
            return max(widest(lines) for lines in self.names) + 2 * GAP
        ticks = widest([tick.text for tick in self.y.ticks]) + 2 * GAP
        return max(ticks, text_width(self.x.ticks[0].text) / 2)

    @property
    def label_gap(self) -> float:
        """Gap between the plot and the text on its right; the last tick's label extends into it, below."""
        return text_width(self.x.ticks[-1].text) / 2 + GAP / 2

    @property
    def right(self) -> float:
        """Width of the space to the right of the plot."""
        beside = [self.figures, *(lines for _, lines in self.labels)]
        return max(map(widest, beside)) + self.label_gap + GAP

    @property
    def row_height(self) -> float:
        """The height of a row."""
        return max(map(len, self.names), default=1) * LINE + GAP / 2

    @property
    def heading(self) -> list[str]:
        """Title of the axis named in the heading: the vertical axis or, for bars in rows, the other."""
        return broken(self.x.title if has_bars_in_rows(self.chart) else self.y.title, self.width)

    @property
    def title(self) -> list[str]:
        """Lines of the title, which is shown under the heading."""
        return broken(self.chart.title, self.width)

    @property
    def has_shade_names(self) -> bool:
        """Whether a line above the plot is reserved for the names of shaded intervals."""
        return self.is_first and bool(self.chart.shades)

    @property
    def upright(self) -> list[tuple[float, list[str]]]:
        """The vertical reference lines, leftmost first, and the lines of text in their labels."""
        lines = sorted((line.x, line.label) for line in self.chart.references if line.x is not None)
        return [(x, broken(label, self.width / 2)) for x, label in lines if self.x.has(x)]

    @property
    def head_height(self) -> float:
        """Height of the space above the plot."""
        upright = sum(len(lines) for _, lines in self.upright)
        return (len(self.heading) + len(self.title) + upright + self.has_shade_names) * LINE + 1.5 * GAP


def form_of(chart: Chart, series: Series) -> Form:
    """Return how a series is drawn."""
    return series.form or FORMS[chart.kind]


def panel_of(chart: Chart, begin: float, end: float, *, is_first: bool) -> Panel:
    """Choose the axes of a chart in its column."""
    chart = _in_rows(chart)
    chart = replace(chart, series=tuple(series for series in chart.series if series.points))
    x, y = _scales(chart)
    return Panel(chart=chart, begin=begin, end=end, is_first=is_first, x=x, y=y)


def has_bars_in_rows(chart: Chart) -> bool:
    """Check whether bars are horizontal, each with its value next to it."""
    return bool(chart.y.names) and any(form_of(chart, series) == "bar" for series in chart.series)


def _in_rows(chart: Chart) -> Chart:
    """Return a chart with one row per bar if its bars are labelled by series; otherwise, unchanged."""
    if not has_named_bars(chart):
        return chart
    points = tuple((series.points[0][1], float(row)) for row, series in enumerate(chart.series))
    ranges = tuple(ends for series in chart.series for ends in series.ranges[:1])
    return replace(
        chart,
        x=replace(chart.y, is_logarithmic=False),
        y=Axis(label="", names=tuple(series.name for series in chart.series)),
        series=(
            Series(name=chart.y.label, points=points, ranges=ranges if len(ranges) == len(points) else ()),
        ),
        references=tuple(replace(line, x=line.y, y=None) for line in chart.references if line.y is not None),
        is_stacked=False,
    )


def _scales(chart: Chart) -> tuple[Scale, Scale]:
    """Choose the ranges of both axes to include everything that is drawn."""
    points = [point for series in chart.series for point in series.points]
    ranges = [end for series in chart.series for ends in series.ranges for end in ends if isfinite(end)]
    xs = [*(x for x, _ in points), *(line.x for line in chart.references if line.x is not None)]
    xs += [*chart.x.reach, *(ranges if chart.y.names else ())]
    ys = [*(y for _, y in points), *(line.y for line in chart.references if line.y is not None)]
    ys += [*chart.y.reach, *ranges, *_tops(chart)]
    has_bars = any(form_of(chart, series) == "bar" for series in chart.series)
    if chart.y.names:
        x = scale_for(chart.x, xs, from_zero=has_bars)
        if has_bars:  # this axis has no ticks, so the longest bar may use all the space
            finite = [value for value in xs if x.has(value)]
            x = replace(x, low=min(0.0, *finite), high=max(0.0, *finite)) if any(finite) else x
        return _ended(x, chart, xs), named_scale(chart.y, is_downward=True)
    y = scale_for(chart.y, ys, from_zero=has_bars)
    if chart.x.names:
        return named_scale(chart.x), y
    x = scale_for(chart.x, xs)
    if has_bars:
        ends = _bar_ends(sorted({value for value, _ in points if x.has(value)}), x)
        x = replace(x, low=min(x.low, *ends), high=max(x.high, *ends))
    return _ended(x, chart, xs), y


def _ended(x: Scale, chart: Chart, values: Sequence[float]) -> Scale:
    """End a horizontal axis with a specified extent exactly at its lowest and highest values."""
    finite = [value for value in values if x.has(value)]
    if not chart.x.reach or min(finite) == max(finite):
        return x
    return cut_to(x, min(finite), max(finite))


def _tops(chart: Chart) -> list[float]:
    """Return the total height of the bars at each position, if they are stacked."""
    tops: defaultdict[float, float] = defaultdict(float)
    for series in chart.series if chart.is_stacked else ():
        for x, y in series.points:
            tops[x] += y if isfinite(y) else 0.0
    return list(tops.values())


def _bar_ends(places: Sequence[float], scale: Scale) -> tuple[float, float]:
    """Return the ends of an axis, extended by half a bar's width."""
    if not places:
        return scale.low, scale.high
    if scale.is_logarithmic:
        ratio = min((after / before for before, after in pairwise(places)), default=2.0) ** 0.5
        return places[0] / ratio, places[-1] * ratio
    half = min((after - before for before, after in pairwise(places)), default=1.0) / 2
    return places[0] - half, places[-1] + half
