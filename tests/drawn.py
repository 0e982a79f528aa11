"""What a drawing holds, for tests: where its texts lie, and the marks in an SVG of it."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from itertools import combinations

from gpuproof.report.drawing import Drawing, Writing, text_width
from gpuproof.report.svg import svg_file

Box = tuple[float, float, float, float]
SVG = "{http://www.w3.org/2000/svg}"


def boxes(drawing: Drawing) -> list[tuple[Box, str]]:
    """Return left, top, right and bottom of every text, by its estimated width, and the text."""
    found = []
    for text in (shape for shape in drawing.shapes if isinstance(shape, Writing)):
        width = text_width(text.text, text.size)
        left = text.x - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[text.anchor]
        found.append(((left, text.y - 0.75 * text.size, left + width, text.y), text.text))
    return found


def overlaps(drawing: Drawing) -> list[tuple[str, str]]:
    """Return the texts that lie over one another."""
    pairs = combinations(boxes(drawing), 2)
    return [(a, b) for (one, a), (other, b) in pairs if _is_over(one, other)]


def outside(drawing: Drawing) -> list[str]:
    """Return the texts that lie over the edge."""
    edges = (-1, 0, drawing.width + 1, drawing.bottom)
    return [
        text
        for (left, top, right, bottom), text in boxes(drawing)
        if left < edges[0] or top < edges[1] or right > edges[2] or bottom > edges[3]
    ]


def marks(drawing: Drawing) -> list[tuple[dict[str, str], tuple[float, float]]]:
    """Return the figures of every mark in the drawing's SVG, and the middle of the mark."""
    found = []
    for element in ET.fromstring(svg_file(drawing)).iter():
        data = {key.removeprefix("data-"): x for key, x in element.attrib.items() if key.startswith("data-")}
        if data:
            found.append((data, _middle(element)))
    return found


def _middle(element: ET.Element) -> tuple[float, float]:
    if element.tag == f"{SVG}rect":
        x, y, width, height = (float(element.attrib[key]) for key in ("x", "y", "width", "height"))
        return x + width / 2, y + height / 2
    places = [tuple(map(float, at.split(","))) for at in element.attrib["d"].strip("Mz").split("L")]
    return _centre([x for x, _ in places]), _centre([y for _, y in places])


def _centre(values: Sequence[float]) -> float:
    return (min(values) + max(values)) / 2


def _is_over(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
