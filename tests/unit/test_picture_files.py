"""Pictures as files: SVG and PNG of the same marks, nothing over the edge, and what is without Pillow."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from PIL import Image

from drawn import SVG, marks, outside, overlaps
from gpuproof.base.errors import EnvironmentUnfitError, UsageError
from gpuproof.records.page import Axis, Chart, Picture, Reference, Series, Shade
from gpuproof.report import pictures as raster
from gpuproof.report.charts import picture_drawing
from gpuproof.report.drawing import COLOURS, Polyline
from gpuproof.report.pictures import write_picture
from pages_by_hand import hostile_page

TIME = Axis(label="time", unit="s", reach=(0.0, 100.0))
NAMES = ("a host of a quite long name, and its cluster's name behind it", "b")
CURVE = tuple((float(t), 10.0 + t % 7) for t in range(0, 101, 5))
COURSE = Chart(
    title="",
    kind="line",
    x=TIME,
    y=Axis(label="power", unit="W"),
    series=(
        Series(name="GPU 1", points=CURVE, ranges=tuple((y - 2, y + 2) for _, y in CURVE), form="band"),
        Series(name="GPU 0", points=CURVE),
        Series(name="GPU 1", points=tuple((x, y + 9) for x, y in CURVE), form="step"),
    ),
    references=(Reference(label="limit 30 W", y=30.0), Reference(label="", x=52.0)),
    shades=(Shade(name="load", begin=0.0, end=40.0), Shade(name="train", begin=40.0, end=100.0)),
)
STRIP = Chart(
    title="",
    kind="line",
    x=TIME,
    y=Axis(label="throttled", names=NAMES),
    series=(
        Series(name="heat", points=((20.0, 1.0),), ranges=((20.0, 60.0),), form="range", colour="#c1121f"),
        Series(name="xid 79", points=((80.0, 0.0),), form="points", colour="ink"),
    ),
    shades=COURSE.shades,
)
ROWS = Chart(
    title="",
    kind="bar",
    x=Axis(label="memory", unit="B"),
    y=Axis(label="", names=NAMES),
    series=(
        Series(name="mean", points=((2.0**30, 0.0), (2.0**31, 1.0))),
        Series(name="peak", points=((2.0**31, 0.0), (2.0**32, 1.0)), form="tick", colour="ink"),
    ),
)
COLUMNS = tuple(
    Chart(
        title=verdict,
        kind="bar",
        x=Axis(label="GPU", names=("0", "1", "2")),
        y=Axis(label="utilisation", unit="%", reach=(0.0, 100.0)),
        series=(Series(name="mean", points=((0.0, 90.0), (1.0, 80.0), (2.0, 40.0))),),
        references=(Reference(label="mean", y=70.0),),
    )
    for verdict in ("excellent, varies by 0.5 %", "poor")
)
PICTURES = (
    Picture(title="Recording", subtitle="2 × GPU", charts=(COURSE, STRIP)),
    Picture(title="Memory", subtitle="two", charts=(ROWS,)),
    Picture(title="Balance", subtitle="", charts=COLUMNS, widths=(1.0, 1.0)),
)


@pytest.mark.parametrize("picture", PICTURES)
def test_png_and_svg_hold_the_same_marks(picture: Picture) -> None:
    drawing = picture_drawing(picture)
    image = raster.image_of(drawing)
    found = marks(drawing)
    points = [
        (series.name, *point)
        for chart in picture.charts
        for series in chart.series
        if series.form in (None, "points", "tick")
        for point in series.points
    ]
    shown = [(data["series"], float(data["x"]), float(data["y"])) for data, _ in found if "x" in data]
    assert sorted(shown) == sorted(points)
    of_name = {s.name: s.colour for chart in picture.charts for s in chart.series}
    for data, (x, y) in found:
        colour = of_name[data["series"]] or ("s1" if data["series"] == "GPU 0" else "s0")
        pixel = image.getpixel((round(x * raster.DENSITY), round(y * raster.DENSITY)))
        expected = COLOURS.get(colour, (colour,))[0]
        assert pixel == tuple(bytes.fromhex(expected[1:])), data


@pytest.mark.parametrize("picture", PICTURES)
@pytest.mark.parametrize("width", [420.0, 900.0])
def test_no_text_of_a_picture_lies_over_another_or_over_the_edge(picture: Picture, width: float) -> None:
    drawing = picture_drawing(picture, width=width)
    assert (overlaps(drawing), outside(drawing)) == ([], [])


def test_plots_below_each_other_share_their_axis_and_stretches_have_their_names_once() -> None:
    drawing = picture_drawing(PICTURES[0])
    texts = [text.text for text in drawing.shapes if hasattr(text, "text")]
    assert [texts.count(name) for name in ("time (s)", "load", "train", "50")] == [1, 1, 1, 0]
    ((heat, (x, _)),) = [(data, at) for data, at in marks(drawing) if data["series"] == "heat"]
    assert (heat["row"], heat["low"], heat["high"]) == ("b", "20.0", "60.0")
    forty = [at for data, (at, _) in marks(drawing) if data["series"] == "GPU 0" and data["x"] == "40.0"]
    assert x == pytest.approx(forty[0], abs=0.2)


def test_an_svg_is_titled_described_and_escaped(tmp_path: Path) -> None:
    (hostile, *_) = (section for section in hostile_page().sections if isinstance(section, Chart))
    path = tmp_path / "hostile.svg"
    write_picture(Picture(title=hostile.title, subtitle=hostile.title, charts=(hostile,)), path)
    root = ET.parse(path).getroot()
    title, description = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert description is not None
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"] == title.text
    assert "<script>alert(1)</script>" in (title.text or "")
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == {
        "svg",
        "title",
        "desc",
        "style",
        "rect",
        "path",
        "text",
    }


@pytest.mark.parametrize(("suffix", "begin"), [("png", b"\x89PNG"), ("svg", b"<svg"), ("PDF", b"%PDF")])
def test_a_picture_is_written_whole_as_its_name_says(suffix: str, begin: bytes, tmp_path: Path) -> None:
    path = tmp_path / "new" / f"a.{suffix}"
    write_picture(PICTURES[0], path)
    assert path.read_bytes().startswith(begin)
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_a_suffix_that_is_no_picture_is_an_error_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"a\.xyz: is not a supported picture format\. Use a file name that ends in \.png"
    ):
        write_picture(PICTURES[0], tmp_path / "a.xyz")


def test_without_pillow_a_png_names_the_extra_and_an_svg_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(EnvironmentUnfitError, match=r"pip install 'gpuproof\[monitor\]'"):
        write_picture(PICTURES[0], tmp_path / "a.png")
    write_picture(PICTURES[0], tmp_path / "a.svg")
    assert [one.name for one in tmp_path.iterdir()] == ["a.svg"]


def test_without_a_font_of_the_system_letters_are_pillows_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raster, "FONTS", ())
    raster._font.cache_clear()
    write_picture(PICTURES[0], tmp_path / "a.png")
    raster._font.cache_clear()
    with Image.open(tmp_path / "a.png") as image:
        assert image.size[0] == 1800


def test_a_dashed_line_goes_on_around_corners() -> None:
    line = Polyline(places=((0, 0), (10, 0), (10, 10)), colour="ink", dash=(6, 3))
    parts = raster._dashes(line)
    assert [[tuple(map(round, at)) for at in part] for part in parts] == [
        [(0, 0), (6, 0)],
        [(9, 0), (10, 0)],
        [(10, 0), (10, 5)],
        [(10, 8), (10, 10)],
    ]
