"""Draw a series' points as shapes: lines, bands, markers, bars and ranges, with their values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import isfinite, isnan

from gpuproof.records.page import Chart, Form, Series
from gpuproof.report.drawing import (
    DASHES,
    GAP,
    NUM_COLOURS,
    TEXT,
    Place,
    Polygon,
    Polyline,
    Rectangle,
    Shape,
    mark,
)
from gpuproof.report.page_parts import axis_figure
from gpuproof.report.plot_area import PlotArea, form_of

WIDEST_GROUP = 60.0
"""Maximum total width of the bars at one position; all lengths here are in pixels."""
THICKEST = 22.0
"""Maximum height of a bar in a row."""
SAMPLE = 36.0
"""Length of a line in the legend."""
MOST_MARKED = 60
"""Maximum number of points in a series that is drawn with markers."""
MOST_PLACES = 1500
"""Maximum number of points in a line before it is thinned."""
LINE_WIDTH = 2.0
THIN = 1.4
"""Width of lines without markers, which may be numerous."""
Box = tuple[float, float, float, float]
"""Left edge, top edge, width and height of a rectangle."""
LINES: tuple[Form, ...] = ("marked", "line", "dashed", "step")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesStyle:
    """The appearance of a series."""

    number: int
    """Index of the series among the chart's names."""
    colour: str
    form: Form
    opacity: float
    """Opacity of areas, so that whatever is below shows through."""

    @property
    def dash(self) -> tuple[float, ...]:
        """The dash pattern of the line."""
        return DASHES[1] if self.form == "dashed" else DASHES[self.number // NUM_COLOURS % len(DASHES)]

    @property
    def width(self) -> float:
        """The width of the line."""
        return LINE_WIDTH if self.form == "marked" else THIN


def style_of(chart: Chart, series: Series, number: int) -> SeriesStyle:
    """Return the style of a series; `number` is its index among the names in the drawing."""
    form = form_of(chart, series)
    return SeriesStyle(
        number=number,
        colour=series.colour or f"s{number % NUM_COLOURS}",
        form=form,
        opacity=0.2 if form == "band" else 0.35 if form == "range" and not series.colour else 1.0,
    )


def draw_series(chart: Chart, series: Series, style: SeriesStyle, area: PlotArea) -> Iterator[Shape]:
    """Yield the shapes of a series."""
    match style.form:
        case "band":
            yield from _bands(series, style, area)
        case "bar" | "tick" | "range":
            yield from _rectangles(chart, series, style, area)
        case "points" | "marked" | "line" | "dashed" | "step":
            yield from _line(chart, series, style, area)
    if style.form not in ("band", "range"):
        yield from _ranges(chart, series, style, area)


def sample_of(style: SeriesStyle, x: float, middle: float) -> Iterator[Shape]:
    """Yield the legend entry of a series as shapes."""
    if style.form in LINES:
        places = ((x, middle), (x + SAMPLE - GAP, middle))
        yield Polyline(places=places, colour=style.colour, width=LINE_WIDTH, dash=style.dash)
    if style.form in ("marked", "points"):
        yield mark(style.number, (x + (SAMPLE - GAP) / 2, middle), style.colour, data={})
    if style.form in ("band", "bar", "range", "tick"):
        left, width = x + SAMPLE - GAP - TEXT, 2.0 if style.form == "tick" else TEXT
        top, seen = middle - TEXT / 2, style.opacity
        yield Rectangle(x=left, y=top, width=width, height=TEXT, colour=style.colour, opacity=seen)


def num_left_out(series: Series, style: SeriesStyle, area: PlotArea) -> int:
    """Return the number of points without a position, not counting gaps in a line."""
    is_line = style.form in LINES or style.form == "band"
    return sum(not area.has(x, y) and not (is_line and isnan(y)) for x, y in series.points)


def _data(series: Series, point: Place) -> dict[str, str | float]:
    return {"series": series.name, "x": point[0], "y": point[1]}


def _line(chart: Chart, series: Series, style: SeriesStyle, area: PlotArea) -> Iterator[Shape]:
    """Yield a line with markers, or markers only; a point between two gaps always gets a marker."""
    pieces = _pieces(series, area)
    for piece in pieces if style.form != "points" else ():
        places = [at for at, _ in piece]
        places = _thinned(_stepped(places) if style.form == "step" else places)
        yield Polyline(places=places, colour=style.colour, width=style.width, dash=style.dash)
    points = [point for piece in pieces for point in piece]
    is_marked = style.form == "points" or (style.form == "marked" and len(points) <= MOST_MARKED)
    lonely = [piece[0] for piece in pieces if len(piece) == 1]
    marked = {(round(x), round(y)): ((x, y), value) for (x, y), value in (points if is_marked else lonely)}
    for at, value in marked.values():
        tooltip = _point_text(chart, series, value)
        yield mark(style.number, at, style.colour, tooltip=tooltip, data=_data(series, value))


def _pieces(series: Series, area: PlotArea) -> list[list[tuple[Place, Place]]]:
    """Return runs of points with their positions; a point without a position breaks the line."""
    pieces: list[list[tuple[Place, Place]]] = [[]]
    for x, y in series.points:
        if area.has(x, y):
            pieces[-1].append(((area.x_at(x), area.y_at(y)), (x, y)))
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]


def _stepped(places: Sequence[Place]) -> list[Place]:
    corners = ([before, (after[0], before[1])] for before, after in pairwise(places))
    return [*(place for pair in corners for place in pair), places[-1]]


def _thinned(places: Sequence[Place]) -> list[Place]:
    """Return the first, lowest, highest and last position of a long line in each pixel column."""
    if len(places) <= MOST_PLACES:
        return list(places)
    thinned: list[Place] = []
    for _, group in groupby(places, key=lambda place: round(place[0])):
        column = list(group)
        ends = {0, len(column) - 1, *(_index(column, choose) for choose in (min, max))}
        thinned += [column[index] for index in sorted(ends)]
    return thinned


def _index(column: Sequence[Place], choose: Callable[..., int]) -> int:
    return choose(range(len(column)), key=lambda index: column[index][1])


def _bands(series: Series, style: SeriesStyle, area: PlotArea) -> Iterator[Shape]:
    """Yield the areas between the ranges: one area from each gap to the next."""
    edges = [
        (area.x_at(x), area.y_at(low), area.y_at(high)) if area.has(x, low) and area.has(x, high) else None
        for (x, _), (low, high) in zip(series.points, series.ranges, strict=True)
    ]
    for is_gap, group in groupby(edges, key=lambda edge: edge is None):
        piece = [edge for edge in group if edge is not None]
        if not is_gap and len(piece) > 1:
            below, above = [(x, low) for x, low, _ in piece], [(x, high) for x, _, high in piece]
            yield Polygon(places=[*below, *reversed(above)], colour=style.colour, opacity=style.opacity)


def _ranges(chart: Chart, series: Series, style: SeriesStyle, area: PlotArea) -> Iterator[Shape]:
    """Yield the range of each point as a line through that point."""
    for (x, y), (low, high) in zip(series.points, series.ranges, strict=False):
        ends = ((low, y), (high, y)) if chart.y.names else ((x, low), (x, high))
        if all(area.has(*end) for end in ends):
            places = tuple((area.x_at(end_x), area.y_at(end_y)) for end_x, end_y in ends)
            colour = "ink" if style.form == "bar" else style.colour
            yield Polyline(places=places, colour=colour, width=LINE_WIDTH)


def _rectangles(chart: Chart, series: Series, style: SeriesStyle, area: PlotArea) -> Iterator[Shape]:
    """Yield bars (vertical or horizontal), lines that cross rows at values, or bars that span ranges."""
    ranges = series.ranges if style.form == "range" else [(x, x) for x, _ in series.points]
    for (x, y), (low, high) in zip(series.points, ranges, strict=True):
        if not (area.has(low, y) and area.has(high, y)):
            continue
        tooltip, data = _point_text(chart, series, (x, y)), _data(series, (x, y))
        if style.form == "range":
            words = f"{axis_figure(low, chart.x)} – {axis_figure(high, chart.x)}"
            tooltip = f"{series.name}: {words}"
            data = {"series": series.name, "row": axis_figure(y, chart.y), "low": low, "high": high}
        if chart.y.names:
            left, top, width, height = _in_row(style, area, y, low, high)
        else:
            left, top, width, height = _upright_bar(chart, series, (x, y), area)
        yield Rectangle(
            x=left,
            y=top,
            width=width,
            height=height,
            colour=style.colour,
            opacity=style.opacity,
            tooltip=tooltip,
            data=data,
        )


def _in_row(style: SeriesStyle, area: PlotArea, row: float, low: float, high: float) -> Box:
    """Return the position of a bar, a crossing line or a range within its row."""
    height = min(THICKEST, 0.7 * abs(area.y_at(1.0) - area.y_at(0.0)))
    left, right = area.x_at(low), area.x_at(high)
    if style.form == "bar":
        left, right = sorted((area.x_at(max(area.x.low, 0.0)), right))
    if style.form == "tick":
        left, right = left - 1, right + 1
    return left, area.y_at(row) - height / 2, max(0.5 * (style.form == "range"), right - left), height


def _upright_bar(chart: Chart, series: Series, point: Place, area: PlotArea) -> Box:
    """Return the position of a bar."""
    places = sorted({area.x_at(x) for other in chart.series for x, _ in other.points if area.x.has(x)})
    between = min((after - before for before, after in pairwise(places)), default=WIDEST_GROUP)
    number, beside = (0, 1) if chart.is_stacked else (chart.series.index(series), len(chart.series))
    width = min(0.8 * between, WIDEST_GROUP) / beside
    base = area.bottom if area.y.is_logarithmic else area.y_at(0.0)
    x, y = point
    below = _below(chart, series, x)
    foot, end = area.y_at(below) if below else base, area.y_at(below + y)
    left = area.x_at(x) + (number - beside / 2) * width
    return left, min(foot, end), max(1.0, width - 1), abs(end - foot)


def _below(chart: Chart, series: Series, x: float) -> float:
    """Return the combined height of earlier series' bars at a position; 0 if bars are side by side."""
    before = chart.series[: chart.series.index(series)] if chart.is_stacked else ()
    return sum(y for other in before for at, y in other.points if at == x and isfinite(y))


def _point_text(chart: Chart, series: Series, point: Place) -> str:
    name = f"{series.name}: " if len(chart.series) > 1 else ""
    return f"{name}{axis_figure(point[0], chart.x)}, {axis_figure(point[1], chart.y)}"
