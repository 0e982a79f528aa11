"""Lay out charts and pictures: headline, legend, panels, axes, reference lines and points.

Everything is laid out here, in pixels; the writers (`svg.py`, `pictures.py`) make no layout decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from gpuproof.records.page import Chart, Picture
from gpuproof.report.axes import Tick
from gpuproof.report.drawing import (
    GAP,
    LINE,
    TEXT,
    Drawing,
    Place,
    Polyline,
    Rectangle,
    broken,
    text_width,
    widest,
)
from gpuproof.report.marks import SAMPLE, SeriesStyle, draw_series, num_left_out, sample_of, style_of
from gpuproof.report.page_parts import one_line
from gpuproof.report.plot_area import Panel, PlotArea, panel_of

WIDTH = 760.0
PICTURE_WIDTH = 900.0
NARROW = 380.0
"""The width of a chart on a phone."""
HEIGHT = 250.0
LOW = 130.0
"""Height of a single plot, and of each plot if several are stacked."""
MOST_HIGH = 2
TITLE = 17.0
SHADE_OPACITY = 0.25


def chart_drawing(chart: Chart, *, width: float = WIDTH) -> Drawing:
    """Lay out a chart within a page, below its title on the page."""
    drawing = Drawing(
        width=width,
        title=one_line(chart.title) or one_line(chart.y.label),
        description=f"{chart.y.label} by {chart.x.label}: {', '.join(series_numbers([chart]))}",
    )
    _draw_charts(drawing, [replace(chart, title="")], widths=(1.0,))
    return drawing


def picture_drawing(picture: Picture, *, width: float = PICTURE_WIDTH) -> Drawing:
    """Lay out a plot with its headline; without charts, only the headline is drawn."""
    names = ", ".join(series_numbers(picture.charts))
    drawing = Drawing(width=width, title=picture.title, description=f"{picture.subtitle}: {names}")
    title = broken(picture.title, width - 2 * GAP, TITLE)
    drawing.write(title, GAP, TITLE + GAP, size=TITLE)
    drawing.write(broken(picture.subtitle, width - 2 * GAP), GAP, drawing.bottom + LINE, colour="axis")
    drawing.bottom += GAP * bool(title)
    if picture.charts:
        _draw_charts(drawing, picture.charts, widths=picture.widths)
    return drawing


def series_numbers(charts: Sequence[Chart]) -> dict[str, int]:
    """Assign a number to each series name; series with a fixed colour come last."""
    series = [series for chart in charts for series in chart.series]
    names = dict.fromkeys(one.name for one in sorted(series, key=lambda one: bool(one.colour)))
    return {name: number for number, name in enumerate(names)}


def _draw_charts(drawing: Drawing, charts: Sequence[Chart], *, widths: Sequence[float]) -> None:
    """Draw the legend, then the charts row by row; stacked charts are aligned horizontally."""
    num = len(widths)
    ends = [0.0, *(drawing.width * width / sum(widths) for width in accumulate(widths))]
    panels = [
        panel_of(chart, ends[n % num], ends[n % num + 1], is_first=n < num) for n, chart in enumerate(charts)
    ]
    numbers = series_numbers([panel.chart for panel in panels])
    if len(numbers) > 1:
        _draw_legend(drawing, [panel.chart for panel in panels], numbers)
    height = HEIGHT if len(panels) <= MOST_HIGH * num else LOW
    for begin in range(0, len(panels), num):
        row, above = panels[begin : begin + num], drawing.bottom
        top = above + max(panel.head_height for panel in row)
        bottoms = []
        for place, panel in enumerate(row):
            column = panels[place::num]
            bottom = top + (len(panel.names) * panel.row_height or height)
            left, right = _sides(panel, column)
            area = PlotArea(left=left, right=right, top=top, bottom=bottom, x=panel.x, y=panel.y)
            drawing.bottom = above
            is_shared = any(below.x == panel.x for below in column[begin // num + 1 :][:1])
            _draw_panel(drawing, panel, area, numbers, has_axis=not is_shared)
            bottoms.append(drawing.bottom)
        drawing.bottom = max(bottoms) + GAP


def _sides(panel: Panel, column: Sequence[Panel]) -> tuple[float, float]:
    """Return the left and right edges of a plot; rows with their own axis are aligned separately."""
    alone = [one for one in column if one.names and [other.x for other in column].count(one.x) == 1]
    aligned = [panel] if panel in alone else [one for one in column if one not in alone]
    return panel.begin + max(one.left for one in aligned), panel.end - max(one.right for one in aligned)


def _draw_panel(
    drawing: Drawing, panel: Panel, area: PlotArea, numbers: Mapping[str, int], *, has_axis: bool
) -> None:
    """Draw a chart; draw its horizontal axis only if the chart below has a different one."""
    chart, left = panel.chart, panel.begin + GAP
    drawing.write(panel.heading, left, drawing.bottom + LINE)
    drawing.write(panel.title, left, drawing.bottom + LINE - GAP / 2 * bool(panel.heading), colour="axis")
    _draw_shades(drawing, panel, area)
    drawing.bottom = area.bottom
    _draw_axes(drawing, panel, area, has_axis=has_axis)
    styles = [style_of(chart, series, numbers[series.name]) for series in chart.series]
    for series, style in zip(chart.series, styles, strict=True):
        drawing.add(*draw_series(chart, series, style, area))
    _draw_upright(drawing, panel, area)
    _draw_level(drawing, panel, area)
    drawn = zip(chart.series, styles, strict=True)
    left_out = sum(num_left_out(series, style, area) for series, style in drawn)
    if left_out and not panel.figures:
        note = f"not drawn: {left_out} of the points, which are not numbers or have no position on these axes"
        drawing.write(broken(note, panel.width), left, drawing.bottom + LINE, colour="axis")


def _draw_shades(drawing: Drawing, panel: Panel, area: PlotArea) -> None:
    """Shade intervals, alternating if adjacent names differ; label those with enough room."""
    named = [shade for shade in panel.chart.shades if not shade.colour]
    names = list(dict.fromkeys(shade.name for shade in named))
    do_touch = any(after.begin <= before.end for before, after in pairwise(named))
    for shade in panel.chart.shades:
        left, right = (area.x_at(min(max(at, area.x.low), area.x.high)) for at in (shade.begin, shade.end))
        if shade.colour or not do_touch or names.index(shade.name) % 2 == 0:
            width, height = max(right - left, 0.5), area.bottom - area.top
            colour, opacity = shade.colour or "shade", SHADE_OPACITY if shade.colour else 1.0
            drawing.add(
                Rectangle(x=left, y=area.top, width=width, height=height, colour=colour, opacity=opacity)
            )
        names_that_fit = (
            name for name in (shade.name, shade.name.rpartition(" ")[2]) if text_width(name) <= right - left
        )
        if panel.is_first and not shade.colour and (name := next(names_that_fit, "")):
            middle = (left + right) / 2
            drawing.write([one_line(name)], middle, area.top - GAP / 2, anchor="middle", colour="axis")


def _draw_axes(drawing: Drawing, panel: Panel, area: PlotArea, *, has_axis: bool) -> None:
    """Draw grid lines, ticks and names, and the horizontal axis unless the plot below shares it."""
    for tick in area.y.ticks if not panel.names else ():
        y = area.y_at(tick.value)
        drawing.level(area.left, area.right, y, colour="grid")
        drawing.write([tick.text], area.left - GAP, y + TEXT / 3, anchor="end", colour="axis")
    for row, lines in enumerate(panel.names):
        first = area.y_at(row) - (len(lines) - 1) * LINE / 2 + TEXT / 3
        drawing.write(lines, area.left - GAP, first, anchor="end")
        if panel.figures:
            drawing.write([panel.figures[row]], area.right + panel.label_gap, area.y_at(row) + TEXT / 3)
    bottom = area.bottom
    if panel.figures:
        drawing.upright(area.x_at(max(area.x.low, 0.0)), area.top - GAP / 2, bottom, colour="axis")
        return
    for tick in _fitting(area):
        x = area.x_at(tick.value)
        if panel.names:
            drawing.upright(x, area.top, bottom, colour="grid")
        if has_axis:
            drawing.upright(x, bottom, bottom + 4, colour="axis")
            drawing.write([tick.text], x, bottom + LINE, anchor="middle", colour="axis")
    drawing.level(area.left, area.right, bottom, colour="axis")
    if has_axis:
        title = broken(area.x.title, area.right - area.left)
        drawing.write(title, (area.left + area.right) / 2, bottom + 2 * LINE + GAP / 2, anchor="middle")


def _fitting(area: PlotArea) -> Sequence[Tick]:
    """Return as many horizontal-axis ticks as fit next to each other."""
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


def _draw_upright(drawing: Drawing, panel: Panel, area: PlotArea) -> None:
    """Draw references as vertical lines; the label of the leftmost line is the highest."""
    num_lines = sum(len(lines) for _, lines in panel.upright)
    y = area.top - GAP - (num_lines + panel.has_shade_names) * LINE + TEXT
    for value, lines in panel.upright:
        x = area.x_at(value)
        if not lines:
            drawing.add(Polyline(places=((x, area.top), (x, area.bottom)), colour="axis", width=0.6))
            continue
        last = y + (len(lines) - 1) * LINE
        drawing.add(_dashed((x, last + GAP / 2), (x, area.bottom)))
        drawing.write(lines, max(panel.begin + GAP, min(x - GAP / 2, panel.end - GAP - widest(lines))), y)
        y = last + LINE


def _draw_level(drawing: Drawing, panel: Panel, area: PlotArea) -> None:
    """Draw references as horizontal lines, with labels on the right, moved down if there is no room."""
    free = area.top - GAP / 2
    for value, lines in reversed(panel.labels):
        y = area.y_at(value)
        first = max(free, y - len(lines) * LINE / 2)
        free = first + len(lines) * LINE + GAP / 2
        middle = first + len(lines) * LINE / 2
        drawing.add(_dashed((area.left, y), (area.right, y), (area.right + panel.label_gap - 2, middle)))
        drawing.write(lines, area.right + panel.label_gap, first + TEXT)


def _dashed(*places: Place) -> Polyline:
    return Polyline(places=places, colour="ink", width=1.2, dash=(5, 4))


def _draw_legend(drawing: Drawing, charts: Sequence[Chart], numbers: Mapping[str, int]) -> None:
    """Write the series names in as many rows as needed, each name with all its markers."""
    styles: dict[str, dict[str, SeriesStyle]] = {name: {} for name in numbers}
    for chart in charts:
        for series in chart.series:
            style = style_of(chart, series, numbers[series.name])
            styles[series.name].setdefault(style.form, style)
    x, y, row = GAP, drawing.bottom + LINE, 1
    for name, forms in styles.items():
        lines = broken(name, drawing.width - SAMPLE - 3 * GAP)
        width = widest(lines) + SAMPLE + 2 * GAP
        if x > GAP and x + width > drawing.width:
            x, y, row = GAP, y + row * LINE, 1
        for style in forms.values():
            drawing.add(*sample_of(style, x, y - TEXT / 3))
        drawing.write(lines, x + SAMPLE - GAP / 2, y)
        x, row = x + width, max(row, len(lines))
    drawing.bottom += GAP
