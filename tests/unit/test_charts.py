"""Charts as SVG: round ticks, every point in its place, no text over another or over the edge."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import combinations, pairwise
from math import inf, nan
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuproof.records.page import Axis, Chart, Reference, Series
from gpuproof.report.axes import Scale, scale_for
from gpuproof.report.charts import WIDTH, draw_chart
from gpuproof.report.svg import broken, text_width
from pages_by_hand import BUS, HOST_BARS, LATENCY, hostile_page

Kind = Literal["line", "scatter", "bar"]
Box = tuple[float, float, float, float]
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


def elements(drawn: Chart, name: str) -> list[ET.Element]:
    return list(ET.fromstring(draw_chart(drawn)).iter(name))


def boxes(drawn: Chart) -> list[Box]:
    """Return left, top, right and bottom of every text, by its estimated width."""
    found = []
    for element in elements(drawn, "text"):
        x, y, width = float(element.attrib["x"]), float(element.attrib["y"]), text_width(element.text or "")
        left = x - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[element.attrib["text-anchor"]]
        found.append((left, y - 9, left + width, y))
    return found


def overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


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
    root = ET.fromstring(draw_chart(drawn))
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    found = boxes(drawn)
    assert min(box[0] for box in found) >= -1
    assert max(box[2] for box in found) <= width + 1
    assert min(box[1] for box in found) >= 0
    assert max(box[3] for box in found) <= height
    assert [pair for pair in combinations(found, 2) if overlap(*pair)] == []


def test_a_point_without_a_place_interrupts_the_line_and_is_told() -> None:
    points = ((0.0, 1.0), (1.0, 2.0), (2.0, nan), (3.0, inf), (4.0, 1.0), (5.0, 1.0))
    drawn = chart("line", Series(name="s", points=points))
    lines = [e for e in elements(drawn, "path") if e.attrib["class"].startswith("line")]
    assert len(lines) == 2
    assert "not drawn: 2 of the points" in draw_chart(drawn)


def test_marks_say_their_figures() -> None:
    titles = [element.text for element in elements(LATENCY, "title")]
    assert "p99: 1,600 requests/s, 1.25 s" in titles


def test_a_long_series_is_thinned_and_keeps_its_ends_and_peaks() -> None:
    points = tuple((float(i), 1.0 + (i == 70_000)) for i in range(100_000))
    drawn = chart("line", Series(name="s", points=points))
    (line,) = [e for e in elements(drawn, "path") if e.attrib["class"].startswith("line")]
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
        {key: float(e.attrib[key]) for key in ("x", "y", "width", "height")} for e in elements(drawn, "rect")
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
    bars = [node for node in ET.fromstring(draw_chart(stacked)).iter() if node.tag.endswith("rect")]
    first = sorted((b for b in bars if b.get("x") == bars[0].get("x")), key=lambda b: -float(b.get("y", 0)))
    assert len(first) == 3
    for below, above in pairwise(first):
        top = float(above.get("y", 0)) + float(above.get("height", 0))
        assert top == pytest.approx(float(below.get("y", 0)), abs=0.2)
    # 2, 3 and 4 of a whole of 9: the heights are as these
    heights = [float(bar.get("height", 0)) for bar in first]
    assert [height / sum(heights) * 9 for height in heights] == pytest.approx([2, 3, 4], abs=0.02)
    line = Series(name="s", points=((1.0, 2.0), (2.0, 3.0)), ranges=((1.0, 2.5), (2.9, 9.0)))
    drawn = draw_chart(Chart(title="t", kind="line", x=Axis(label="x"), y=Axis(label="y"), series=(line,)))
    upright = [node.get("d", "") for node in ET.fromstring(drawn).iter() if "V" in node.get("d", "")]
    assert len(upright) == 2
