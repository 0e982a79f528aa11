"""Write plots as SVG, PNG or PDF files, by file extension, and as data for a page's script.

Pillow draws PNG files, and PDF files as a page that contains one PNG. It needs no display and does no
antialiasing, so images are drawn at twice the final size and then scaled down. They use the light colours and
have twice the drawing's resolution. Text uses the system's fonts or, if there are none, Pillow's own font,
which covers few characters: missing characters are replaced with available ones.

>>> _plain("3 × µs – café")
'3 x us - cafe'
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import combining, normalize

from gpuproof.base.errors import EnvironmentUnfitError, UsageError
from gpuproof.base.files import aside
from gpuproof.records.page import Chart, Picture, Series
from gpuproof.report.charts import picture_drawing, series_numbers
from gpuproof.report.drawing import COLOURS, Drawing, Place, Polygon, Polyline, Rectangle, Shape, Writing
from gpuproof.report.marks import SeriesStyle, style_of
from gpuproof.report.svg import svg_file

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont


DENSITY = 2
SAMPLES = 2
"""Number of pixels drawn per final pixel, along each axis."""
SCALE = DENSITY * SAMPLES
HALO = 1.5
"""Margin around a text, in drawing pixels, so that lines behind the text do not cross its letters."""
FONTS = ("DejaVuSans.ttf", "LiberationSans-Regular.ttf", "NotoSans-Regular.ttf", "Arial.ttf")
ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}
PLAIN = str.maketrans(
    {"×": "x", "µ": "u", "μ": "u", "–": "-", "—": "-", "−": "-", "→": "->", "≤": "<=", "≥": ">="}
)
DRAWN = "°·±…“’©"
"""Non-ASCII characters in Pillow's built-in font."""


def write_picture(picture: Picture, path: Path) -> None:
    """Write a plot in the format of its file extension: to a temporary file, which is then renamed.

    Raises:
        UsageError: the file name has none of these extensions.
        EnvironmentUnfitError: Pillow is not installed, or the file cannot be written.
    """
    kind = path.suffix.removeprefix(".").lower()
    if kind not in ("png", "svg", "pdf"):
        raise UsageError(
            "is not a supported picture format",
            place=str(path),
            next_step="Use a file name that ends in .png, .svg or .pdf",
        )
    drawing = picture_drawing(picture)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentUnfitError(error.strerror or str(error), place=str(path.parent)) from error
    with aside(path) as place:
        if kind == "svg":
            place.write_text(svg_file(drawing), encoding="utf-8")
        else:
            image_of(drawing).save(place, format=kind, resolution=72 * DENSITY)


def picture_data(picture: Picture | Chart) -> dict[str, Any]:
    """Return a plot's source data as JSON: columns of numbers with six digits, null for a gap."""
    charts = picture.charts if isinstance(picture, Picture) else (picture,)
    numbers = series_numbers(charts)
    return {"title": picture.title, "charts": [_chart_data(chart, numbers) for chart in charts]}


def _chart_data(chart: Chart, numbers: Mapping[str, int]) -> dict[str, Any]:
    styled = ((series, style_of(chart, series, numbers[series.name])) for series in chart.series)
    return {
        "x": asdict(chart.x),
        "y": asdict(chart.y),
        "series": [_series_data(series, style) for series, style in styled],
        "references": list(map(asdict, chart.references)),
        "shades": list(map(asdict, chart.shades)),
    }


def _series_data(series: Series, style: SeriesStyle) -> dict[str, Any]:
    columns = {"x": (x for x, _ in series.points), "y": (y for _, y in series.points)}
    if series.ranges:
        columns |= {"low": (low for low, _ in series.ranges), "high": (high for _, high in series.ranges)}
    numbers = {name: _rounded(column) for name, column in columns.items()}
    return {"name": series.name, "form": style.form, "colour": style.colour, **numbers}


def _rounded(values: Iterable[float]) -> list[float | None]:
    return [float(f"{value:.6g}") if isfinite(value) else None for value in values]


def image_of(drawing: Drawing) -> Image:
    """Return a drawing as an image.

    Raises:
        EnvironmentUnfitError: Pillow is not installed.
    """
    try:
        from PIL import Image, ImageDraw
    except ImportError as error:
        raise EnvironmentUnfitError(
            "pictures other than .svg need Pillow, which is not installed",
            next_step="Install it with: pip install 'gpuproof[monitor]'",
        ) from error
    size = (round(drawing.width * SCALE), round(drawing.bottom * SCALE))
    image = Image.new("RGB", size, COLOURS["paper"][0])
    pen = ImageDraw.Draw(image, "RGBA")
    for shape in drawing.shapes:
        _draw(pen, shape)
    return image.reduce(SAMPLES)


def _draw(pen: ImageDraw, shape: Shape) -> None:
    colour = _colour(shape)
    match shape:
        case Polyline(dash=()):
            pen.line(_scaled(shape.places), fill=colour, width=round(shape.width * SCALE), joint="curve")
        case Polyline():
            for part in _dashes(shape):
                pen.line(_scaled(part), fill=colour, width=round(shape.width * SCALE))
        case Polygon():
            pen.polygon(_scaled(shape.places), fill=colour)
        case Rectangle():
            corners = [(shape.x, shape.y), (shape.x + shape.width, shape.y + shape.height)]
            pen.rectangle(_scaled(corners), fill=colour)
        case Writing():
            font, is_whole = _font(round(shape.size * SCALE))
            text = shape.text if is_whole else _plain(shape.text)
            halo: dict[str, Any] = {"stroke_width": HALO * SCALE, "stroke_fill": COLOURS["paper"][0]}
            at = (shape.x * SCALE, shape.y * SCALE)
            pen.text(at, text, fill=colour, font=font, anchor=ANCHORS[shape.anchor], **halo)


def _colour(shape: Shape) -> str:
    colour = COLOURS.get(shape.colour, (shape.colour,))[0]
    opacity = shape.opacity if isinstance(shape, Polygon | Rectangle) else 1.0
    return f"{colour}{round(opacity * 255):02x}"


def _scaled(places: Any) -> list[Place]:
    return [(x * SCALE, y * SCALE) for x, y in places]


def _dashes(line: Polyline) -> list[list[Place]]:
    """Split a line into dashes, which continue around corners."""
    parts: list[list[Place]] = []
    turn, left = 0, line.dash[0]
    for (x, y), (end_x, end_y) in zip(line.places, line.places[1:], strict=False):
        length = ((end_x - x) ** 2 + (end_y - y) ** 2) ** 0.5
        done = 0.0
        while length > done:
            step = min(left, length - done)
            begin, end = done / length, (done + step) / length
            if turn % 2 == 0:
                parts.append([(x + (end_x - x) * share, y + (end_y - y) * share) for share in (begin, end)])
            done, left = done + step, left - step
            if left <= 1e-9:
                turn += 1
                left = line.dash[turn % len(line.dash)]
    return parts


@cache
def _font(size: int) -> tuple[FreeTypeFont, bool]:
    """Return a font, and whether it supports most characters."""
    from PIL import ImageFont

    for name in FONTS:
        with suppress(OSError):
            return ImageFont.truetype(name, size), True
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont)
    return font, False


def _plain(text: str) -> str:
    """Replace the characters of a text that Pillow's own font does not have."""
    signs = (sign for sign in normalize("NFKD", text.translate(PLAIN)) if not combining(sign))
    return "".join(sign if sign.isascii() or sign in DRAWN else "?" for sign in signs)
