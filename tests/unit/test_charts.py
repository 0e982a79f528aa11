"""Charts as SVG: round ticks, every point in its place, no text over another or over the edge."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise
from math import inf, nan
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drawn import outside, overlaps
from gpuproof.records.page import Axis, Chart, Reference, Series
from gpuproof.report.axes import Scale, scale_for
from gpuproof.report.charts import WIDTH, chart_drawing
from gpuproof.report.drawing import broken, text_width
from gpuproof.report.svg import svg_element
from pages_by_hand import BUS, HOST_BARS, LATENCY, hostile_page

Kind = Literal["line", "scatter", "bar"]
HOSTILE_CHARTS = [section for section in hostile_page().sections if isinstance(section, Chart)]


def texts(scale: Scale) -> list[str]:
    return [tick.text for tick in scale.ticks]


@pytest.mark.parametrize(
    ("axis", "values", "title", "ticks"),
    [
        (Axis(label="t", unit="s"), [0.0, 0.02], "t (ms)", ["0", "5", "10", "15", "20"]),
        (Axis(label="m", unit="B"), [2.0**30, 5 * 2.0**30], "m (GiB)", ["0", "1", "2", "3", "4", "5"]),
        (Axis(label="n"), [1.0, 8.0], "n", ["0", "2", "4", "6", "8"]),
        (Axis(label="r", unit="it/s"), [1e6, 2e6], "r (M it/s)", ["0", "0.5", "1.0", "1.5", "2.0"]),
        (Axis(label="r", unit="it/s"), [1999.0, 2001.0], "r (it/s)", None),
        (Axis(label="n", is_logarithmic=True), [1.0, 8.0], "n", ["1", "2", "4", "8"]),
        (Axis(label="n", is_logarithmic=True), [25.0, 70.0], "n", ["20", "50", "100"]),
        (Axis(label="t", unit="s", is_logarithmic=True), [1e-5, 0.5], "t", None),
        (Axis(label="m", unit="B", is_logarithmic=True), [4.0, 2.0**33], "m", None),
    ],
)
def test_ticks_are_round_and_values_lie_between_them(
    axis: Axis, values: list[float], title: str, ticks: list[str] | None
) -> None:
    scale = scale_for(axis, values)
    assert scale.title == title
    assert ticks is None or texts(scale) == ticks
    assert 2 <= len(scale.ticks) <= 8
    assert all(-1e-6 <= scale.share(value) <= 1 + 1e-6 for value in values)
    assert len(set(texts(scale))) == len(scale.ticks)


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=6),
    st.booleans(),
    st.sampled_from(["", "s", "B", "B/s", "it/s"]),
    st.booleans(),
)
def test_every_set_of_values_has_an_axis(
    values: list[float], is_logarithmic: bool, unit: str, from_zero: bool
) -> None:
    axis = Axis(label="x", unit=unit, is_logarithmic=is_logarithmic)
    scale = scale_for(axis, values, from_zero=from_zero)
    assert scale.low < scale.high
    assert 1 <= len(scale.ticks) <= 9
    placed = [scale.share(value) for value in values if scale.has(value)]
    assert all(-1e-6 <= share <= 1 + 1e-6 for share in placed)


def chart(
    kind: Kind, *series: Series, is_logarithmic: bool = False, refs: tuple[Reference, ...] = ()
) -> Chart:
    axis = Axis(label="a", unit="s", is_logarithmic=is_logarithmic)
    return Chart(title="c", kind=kind, x=axis, y=axis, series=series, references=refs)


def draw_chart(drawn: Chart) -> str:
    return svg_element(chart_drawing(drawn))


def elements(drawn: Chart, name: str) -> list[ET.Element]:
    return list(ET.fromstring(draw_chart(drawn)).iter(name))


def lines_of(drawn: Chart) -> list[ET.Element]:
    """Return the lines of the series, those of grid and axes apart."""
    return [one for one in elements(drawn, "path") if one.attrib["class"].startswith("line s")]


CROWDED = chart(
    "line",
    *(Series(name=f"series number {n}", points=((1e-6, 1e-5), (1e-2, n + 1e-4))) for n in range(12)),
    is_logarithmic=True,
    refs=tuple(
        Reference(label=f"a bound with quite a long name {n}", x=1e-3 * (1 + n / 9), y=1.0 + n / 50)
        for n in range(5)
    ),
)


@pytest.mark.parametrize("drawn", [LATENCY, BUS, HOST_BARS, CROWDED, *HOSTILE_CHARTS])
def test_no_text_lies_over_another_or_over_the_edge(drawn: Chart) -> None:
    for width in (390.0, WIDTH):
        drawing = chart_drawing(drawn, width=width)
        assert (overlaps(drawing), outside(drawing)) == ([], [])


def test_a_point_without_a_place_interrupts_the_line_and_is_told() -> None:
    points = ((0.0, 1.0), (1.0, 2.0), (2.0, nan), (3.0, inf), (4.0, 1.0), (5.0, 1.0))
    drawn = chart("line", Series(name="s", points=points))
    assert len(lines_of(drawn)) == 2
    assert "not drawn: 1 of the points" in draw_chart(drawn)  # one that is no number is a gap, and is seen
    assert "not drawn: 2 of the points" in draw_chart(replace(drawn, kind="scatter"))


def test_marks_say_their_figures() -> None:
    titles = [element.text for element in elements(LATENCY, "title")]
    assert "p99: 1,600 requests/s, 1.25 s" in titles


def test_a_long_series_is_thinned_and_keeps_its_ends_and_peaks() -> None:
    points = tuple((float(i), 1.0 + (i == 70_000)) for i in range(100_000))
    drawn = chart("line", Series(name="s", points=points))
    (line,) = lines_of(drawn)
    places = [tuple(map(float, place.split(","))) for place in line.attrib["d"].lstrip("M").split("L")]
    assert len(places) < 4 * WIDTH
    assert len({y for _, y in places}) == 2
    assert all(before[0] <= after[0] for before, after in pairwise(places))


def test_bars_stand_beside_each_other_and_begin_at_zero() -> None:
    drawn = chart(
        "bar",
        Series(name="a", points=((1.0, 2.0), (2.0, -1.0))),
        Series(name="b", points=((1.0, 4.0), (2.0, 1.0))),
    )
    bars = [
        {key: float(bar.attrib[key]) for key in ("x", "y", "width", "height")}
        for bar in elements(drawn, "rect")
        if "data-x" in bar.attrib
    ]
    spans = sorted((bar["x"], bar["x"] + bar["width"]) for bar in bars)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    up = max(bars, key=lambda bar: bar["height"])
    down = next(bar for bar in bars if bar["y"] == pytest.approx(up["y"] + up["height"], abs=0.11))
    assert up["height"] == pytest.approx(4 * down["height"], rel=0.01)


def test_named_bars_are_as_long_as_their_figures() -> None:
    widths = [float(element.attrib["width"]) for element in elements(HOST_BARS, "rect")]
    assert widths[1] / widths[0] == pytest.approx(1987 / 2001, rel=1e-3)
    assert widths[2] == 0


def test_words_are_broken_only_where_one_alone_is_too_wide() -> None:
    assert broken("one two three", text_width("one two")) == ["one two", "three"]
    pieces = broken("w" * 100, 120)
    assert "".join(pieces) == "w" * 100
    assert max(map(text_width, pieces)) <= 120
    assert broken("", 100) == []


def test_stacked_bars_stand_on_one_another_and_ranges_go_through_their_points() -> None:
    axis = Axis(label="devices", is_logarithmic=True)
    parts = [Series(name=f"p{n}", points=((1.0, 2.0 + n), (2.0, 1.0))) for n in range(3)]
    stacked = Chart(title="t", kind="bar", x=axis, y=Axis(label="y"), series=tuple(parts), is_stacked=True)
    bars = [bar for bar in elements(stacked, "rect") if "data-x" in bar.attrib]
    first = sorted((b for b in bars if b.get("x") == bars[0].get("x")), key=lambda b: -float(b.get("y", 0)))
    assert len(first) == 3
    for below, above in pairwise(first):
        top = float(above.get("y", 0)) + float(above.get("height", 0))
        assert top == pytest.approx(float(below.get("y", 0)), abs=0.2)
    # 2, 3 and 4 of a whole of 9: the heights are as these
    heights = [float(bar.get("height", 0)) for bar in first]
    assert [height / sum(heights) * 9 for height in heights] == pytest.approx([2, 3, 4], abs=0.02)
    line = Series(name="s", points=((1.0, 2.0), (2.0, 3.0)), ranges=((1.0, 2.5), (2.9, 9.0)))
    _, *upright = lines_of(
        Chart(title="t", kind="line", x=Axis(label="x"), y=Axis(label="y"), series=(line,))
    )
    ends = [[end.split(",")[0] for end in one.attrib["d"].lstrip("M").split("L")] for one in upright]
    assert [left == right for left, right in ends] == [True, True]
