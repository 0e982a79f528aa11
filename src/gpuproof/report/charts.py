"""A chart as one SVG element, to stand in a page: axes, points, bars, reference lines and a legend."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby, pairwise
from math import isfinite

from gpuproof.records.page import Chart, Reference, Series
from gpuproof.report.axes import Scale, Tick, scale_for
from gpuproof.report.page_parts import axis_figure, has_named_bars, one_line
from gpuproof.report.svg import (
    DASHES,
    GAP,
    LINE,
    NUM_COLOURS,
    TEXT,
    Drawing,
    broken,
    colour,
    pixels,
    text_width,
)

WIDTH = 760.0
HEIGHT = 300.0
"""Of the plot itself, in pixels, as all lengths here."""
WIDEST_NAME = 220.0
WIDEST_LABEL = 180.0
WIDEST_GROUP = 60.0
"""Of bars at one place."""
SAMPLE = 36.0
"""Of a line in the legend."""
MOST_MARKED = 60
"""A series of more points is drawn without marks."""
Place = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotArea:
    """The rectangle that points are drawn in, in pixels from the top left, and its two axes."""

    left: float
    right: float
    top: float
    bottom: float
    x: Scale
    y: Scale

    def x_at(self, value: float) -> float:
        """Return the place of a value along the horizontal axis."""
        return self.left + self.x.share(value) * (self.right - self.left)

    def y_at(self, value: float) -> float:
        """Return the place of a value along the vertical axis."""
        return self.bottom - self.y.share(value) * (self.bottom - self.top)


def draw_chart(chart: Chart) -> str:
    """Return the chart as an SVG element, as wide as the page and as high as it takes."""
    drawing = Drawing([])
    if has_named_bars(chart):
        _draw_named_bars(drawing, chart)
    else:
        _draw_plot(drawing, chart)
    height = drawing.bottom + GAP
    name = escape(one_line(chart.title) or one_line(chart.y.label))
    size = f'viewBox="0 0 {WIDTH:.0f} {height:.0f}"'
    return f'<svg class="chart" role="img" aria-label="{name}" {size}>{"".join(drawing.parts)}</svg>'


def _draw_plot(drawing: Drawing, chart: Chart) -> None:
    """Draw points along two axes, the legend, and what could not be drawn."""
    area = _plot_area(drawing, chart)
    _draw_axes(drawing, area)
    draw = _draw_bars if chart.kind == "bar" else _draw_points
    left_out = sum(draw(drawing, chart, number, area) for number in range(len(chart.series)))
    _draw_upright(drawing, [(line.label, line.x) for line in chart.references], area)
    drawing.bottom = area.bottom + LINE + GAP / 2
    _draw_level(drawing, chart.references, area)
    title = broken(area.x.title, area.right - area.left)
    drawing.write(title, (area.left + area.right) / 2, drawing.bottom + LINE, anchor="middle")
    if len(chart.series) > 1:
        _draw_legend(drawing, chart)
    if left_out:
        note = f"not drawn: {left_out} of the points, which are no numbers or have no place on these axes"
        drawing.write([note], GAP, drawing.bottom + LINE, kind="tick")


def _plot_area(drawing: Drawing, chart: Chart) -> PlotArea:
    """Choose the axes, write the title of the vertical one, and leave room for all that is around."""
    points = [point for series in chart.series for point in series.points]
    xs = [*(x for x, _ in points), *(line.x for line in chart.references if line.x is not None)]
    ranges = [end for series in chart.series for ends in series.ranges for end in ends if isfinite(end)]
    ys = [
        *(y for _, y in points),
        *ranges,
        *_tops(chart),
        *(line.y for line in chart.references if line.y is not None),
    ]
    x, y = scale_for(chart.x, xs), scale_for(chart.y, ys, from_zero=chart.kind == "bar")
    if chart.kind == "bar":
        ends = _beside(sorted({value for value, _ in points if x.has(value)}), x)
        x = replace(x, low=min(x.low, *ends), high=max(x.high, *ends))
    tick_width = max(text_width(tick.text) for tick in y.ticks)
    labels = [broken(line.label, WIDEST_LABEL) for line in chart.references if line.y is not None]
    beside = max((text_width(text) + 2 * GAP for lines in labels for text in lines), default=0.0)
    title = broken(y.title, WIDTH - 2 * GAP)
    drawing.write(title, GAP, LINE)
    upright = [broken(line.label, WIDTH / 2) for line in chart.references if line.x is not None]
    top = (len(title) + sum(map(len, upright))) * LINE + 2 * GAP
    return PlotArea(
        left=max(tick_width + 2 * GAP, text_width(x.ticks[0].text) / 2),
        right=WIDTH - max(beside, text_width(x.ticks[-1].text) / 2) - GAP,
        top=top,
        bottom=top + HEIGHT,
        x=x,
        y=y,
    )


def _tops(chart: Chart) -> list[float]:
    """Return how high the bars of each place stand together, where they stand on one another."""
    tops: defaultdict[float, float] = defaultdict(float)
    for series in chart.series if chart.is_stacked else ():
        for x, y in series.points:
            tops[x] += y if isfinite(y) else 0.0
    return list(tops.values())


def _beside(places: Sequence[float], scale: Scale) -> tuple[float, float]:
    """Return the ends of an axis at which half a bar more has room."""
    if not places:
        return scale.low, scale.high
    if scale.is_logarithmic:
        ratio = min((after / before for before, after in pairwise(places)), default=2.0) ** 0.5
        return places[0] / ratio, places[-1] * ratio
    half = min((after - before for before, after in pairwise(places)), default=1.0) / 2
    return places[0] - half, places[-1] + half


def _draw_axes(drawing: Drawing, area: PlotArea) -> None:
    for tick in area.y.ticks:
        y = area.y_at(tick.value)
        drawing.add("line", x1=area.left, x2=area.right, y1=y, y2=y, class_="grid")
        drawing.write([tick.text], area.left - GAP, y + TEXT / 3, anchor="end", kind="tick")
    for tick in _fitting(area):
        x = area.x_at(tick.value)
        drawing.add("line", x1=x, x2=x, y1=area.bottom, y2=area.bottom + 4, class_="axis")
        drawing.write([tick.text], x, area.bottom + LINE, anchor="middle", kind="tick")
    drawing.add("line", x1=area.left, x2=area.right, y1=area.bottom, y2=area.bottom, class_="axis")


def _fitting(area: PlotArea) -> Sequence[Tick]:
    """Return as many ticks of the horizontal axis as have room beside each other."""
    ticks = area.x.ticks
    for stride in range(1, len(ticks)):
        chosen = ticks[::stride]
        if all(
            area.x_at(after.value) - area.x_at(before.value)
            > (text_width(before.text) + text_width(after.text)) / 2 + GAP
            for before, after in pairwise(chosen)
        ):
            return chosen
    return ticks[:1]


def _draw_points(drawing: Drawing, chart: Chart, number: int, area: PlotArea) -> int:
    """Draw a series as a line or as marks; return how many points have no place."""
    series = chart.series[number]
    pieces = _pieces(series, area)
    if chart.kind == "line":
        for piece in pieces:
            path = "L".join(f"{pixels(x)},{pixels(y)}" for x, y in _thinned([at for at, _ in piece]))
            dash = DASHES[number // NUM_COLOURS % len(DASHES)]
            drawing.add("path", d=f"M{path}", class_=f"line {colour(number)}", stroke_dasharray=dash)
    points = [point for piece in pieces for point in piece]
    lonely = [piece[0] for piece in pieces if len(piece) == 1]
    is_marked = chart.kind == "scatter" or len(points) <= MOST_MARKED
    marked = {(round(x), round(y)): ((x, y), value) for (x, y), value in (points if is_marked else lonely)}
    _draw_ranges(drawing, series, number, area)
    for (x, y), value in marked.values():
        drawing.mark(number, x, y, tooltip=_point_text(chart, series, value))
    return len(series.points) - len(points)


def _draw_ranges(drawing: Drawing, series: Series, number: int, area: PlotArea) -> None:
    """Draw what each point may be as an upright line through it."""
    for (x, _), (low, high) in zip(series.points, series.ranges, strict=False):
        if area.x.has(x) and area.y.has(low) and area.y.has(high):
            ends = f"M{pixels(area.x_at(x))},{pixels(area.y_at(low))}V{pixels(area.y_at(high))}"
            drawing.add("path", d=ends, class_=f"line {colour(number)}")


def _pieces(series: Series, area: PlotArea) -> list[list[tuple[Place, Place]]]:
    """Return runs of points that have places, each place with its point: what has none interrupts a line."""
    pieces: list[list[tuple[Place, Place]]] = [[]]
    for x, y in series.points:
        if area.x.has(x) and area.y.has(y):
            pieces[-1].append(((area.x_at(x), area.y_at(y)), (x, y)))
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]


def _thinned(places: Sequence[Place]) -> list[Place]:
    """Return of a long line the first, lowest, highest and last place in each column of pixels."""
    if len(places) <= 2 * WIDTH:
        return list(places)
    thinned: list[Place] = []
    for _, group in groupby(places, key=lambda place: round(place[0])):
        column = list(group)
        ends = {0, len(column) - 1, *(_index(column, choose) for choose in (min, max))}
        thinned += [column[index] for index in sorted(ends)]
    return thinned


def _index(column: Sequence[Place], choose: Callable[..., int]) -> int:
    return choose(range(len(column)), key=lambda index: column[index][1])


def _draw_bars(drawing: Drawing, chart: Chart, number: int, area: PlotArea) -> int:
    """Draw the bars of a series beside those of the others, or on them; return how many have no place."""
    places = sorted({area.x_at(x) for series in chart.series for x, _ in series.points if area.x.has(x)})
    between = min((after - before for before, after in pairwise(places)), default=WIDEST_GROUP)
    beside = 1 if chart.is_stacked else len(chart.series)
    width = min(0.8 * between, WIDEST_GROUP) / beside
    base = area.bottom if area.y.is_logarithmic else area.y_at(0.0)
    series = chart.series[number]
    points = [(x, y) for x, y in series.points if area.x.has(x) and area.y.has(y)]
    for x, y in points:
        below = _below(chart, number, x)
        foot, end = area.y_at(below) if below else base, area.y_at(below + y)
        drawing.add(
            "rect",
            x=area.x_at(x) + ((0 if chart.is_stacked else number) - beside / 2) * width,
            y=min(foot, end),
            width=max(1.0, width - 1),
            height=abs(end - foot),
            class_=f"fill {colour(number)}",
            tooltip=_point_text(chart, series, (x, y)),
        )
    return len(series.points) - len(points)


def _below(chart: Chart, number: int, x: float) -> float:
    """Return how high the bars of the series before stand at a place; 0 where they stand apart."""
    before = chart.series[:number] if chart.is_stacked else ()
    return sum(y for series in before for at, y in series.points if at == x and isfinite(y))


def _draw_named_bars(drawing: Drawing, chart: Chart) -> None:
    """Draw a bar a series below each other: a name, the bar, the figure."""
    bars = [(series.name, series.points[0][1]) for series in chart.series]
    names = [broken(name, WIDEST_NAME) for name, _ in bars]
    figures = [axis_figure(value, chart.y) for _, value in bars]
    values = [value for _, value in bars if isfinite(value)]
    values += [line.y for line in chart.references if line.y is not None and isfinite(line.y)]
    scale = scale_for(replace(chart.y, is_logarithmic=False), values, from_zero=True)
    # No ticks are shown here, so that the longest bar may take all the room.
    scale = replace(scale, low=min(0.0, *values), high=max(0.0, *values)) if any(values) else scale
    title = broken(chart.y.label, WIDTH - 2 * GAP)
    drawing.write(title, GAP, LINE)
    upright = [broken(line.label, WIDTH / 2) for line in chart.references if line.y is not None]
    top = (len(title) + sum(map(len, upright))) * LINE + 2 * GAP
    area = PlotArea(
        left=max((text_width(line) for lines in names for line in lines), default=0.0) + 2 * GAP,
        right=WIDTH - max(map(text_width, figures), default=0.0) - 2 * GAP,
        top=top,
        bottom=top + sum(max(1, len(lines)) * LINE + GAP for lines in names),
        x=scale,
        y=scale,
    )
    _draw_rows(drawing, area, names, [value for _, value in bars], figures)
    _draw_upright(drawing, [(line.label, line.y) for line in chart.references], area)


def _draw_rows(
    drawing: Drawing,
    area: PlotArea,
    names: Sequence[Sequence[str]],
    values: Sequence[float],
    figures: Sequence[str],
) -> None:
    top, zero = area.top, area.x_at(0.0)
    for name, value, figure in zip(names, values, figures, strict=True):
        height = max(1, len(name)) * LINE
        drawing.write(name, area.left - GAP, top + TEXT, anchor="end")
        if area.x.has(value):
            end = area.x_at(value)
            left, width = min(zero, end), abs(end - zero)
            drawing.add("rect", x=left, y=top, width=width, height=height, class_="fill s0", tooltip=figure)
        drawing.write([figure], WIDTH - GAP, top + TEXT, anchor="end")
        top += height + GAP
    drawing.add("line", x1=zero, x2=zero, y1=area.top - GAP / 2, y2=area.bottom, class_="axis")


def _draw_upright(drawing: Drawing, references: Sequence[tuple[str, float | None]], area: PlotArea) -> None:
    """Draw references as lines from top to bottom; the label of the leftmost one is the highest."""
    marks = sorted((value, label) for label, value in references if value is not None and area.x.has(value))
    labels = [broken(label, WIDTH / 2) for _, label in marks]
    y = area.top - GAP - sum(map(len, labels)) * LINE + TEXT
    for (value, _), lines in zip(marks, labels, strict=True):
        x = area.x_at(value)
        end = y + (len(lines) - 1) * LINE
        drawing.add("line", x1=x, x2=x, y1=end + GAP / 2, y2=area.bottom, class_="reference")
        width = max(map(text_width, lines), default=0.0)
        drawing.write(lines, max(GAP, min(x - GAP / 2, WIDTH - GAP - width)), y)
        y = end + LINE


def _draw_level(drawing: Drawing, references: Sequence[Reference], area: PlotArea) -> None:
    """Draw references as level lines; their labels stand on the right, moved down where there is no room."""
    marks = [
        (area.y_at(line.y), line.label) for line in references if line.y is not None and area.y.has(line.y)
    ]
    free = area.top - GAP / 2
    for y, label in sorted(marks):
        lines = broken(label, WIDEST_LABEL)
        begin = max(free, y - len(lines) * LINE / 2)
        middle = begin + len(lines) * LINE / 2
        free = begin + len(lines) * LINE + GAP / 2
        path = f"M{pixels(area.left)},{pixels(y)}H{pixels(area.right)}l{pixels(GAP)},{pixels(middle - y)}"
        drawing.add("path", d=path, class_="reference")
        drawing.write(lines, area.right + 1.5 * GAP, begin + TEXT)


def _draw_legend(drawing: Drawing, chart: Chart) -> None:
    """Write the names of the series in as many rows as they take."""
    x, y, row = GAP, drawing.bottom + LINE + GAP, 1
    for number, series in enumerate(chart.series):
        lines = broken(series.name, WIDTH - SAMPLE - 3 * GAP)
        width = max(map(text_width, lines), default=0.0) + SAMPLE + 2 * GAP
        if x > GAP and x + width > WIDTH:
            x, y, row = GAP, y + row * LINE, 1
        middle = y - TEXT / 3
        if chart.kind == "line":
            dash = DASHES[number // NUM_COLOURS % len(DASHES)]
            path = f"M{pixels(x)},{pixels(middle)}h{pixels(SAMPLE - GAP)}"
            drawing.add("path", d=path, class_=f"line {colour(number)}", stroke_dasharray=dash)
        drawing.mark(number, x + (SAMPLE - GAP) / 2, middle)
        drawing.write(lines, x + SAMPLE - GAP / 2, y)
        x, row = x + width, max(row, len(lines))


def _point_text(chart: Chart, series: Series, point: Place) -> str:
    name = f"{series.name}: " if len(chart.series) > 1 else ""
    return f"{name}{axis_figure(point[0], chart.x)}, {axis_figure(point[1], chart.y)}"
