"""Drawing primitives: lines, polygons, rectangles and text, in pixels from the top left.

The writers (`svg.py`, `pictures.py`) draw these primitives and know nothing about charts. Text width is not
measured here but estimated, erring on the wide side, and text is wrapped rather than cut off.

>>> broken("a bound that is long", 80)
['a bound', 'that is long']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import cos, pi, sin
from typing import Literal
from unicodedata import east_asian_width

from gpuproof.report.page_parts import one_line

TEXT = 12.0
"""Height of the letters; all lengths here are in pixels."""
LINE = 16.0
"""Distance from one line of text to the next."""
GAP = 8.0
NUM_COLOURS = 8
DASHES: Sequence[tuple[float, ...]] = ((), (7, 3), (2, 3), (9, 3, 2, 3))
"""Dash patterns of lines: from the ninth series on, colours repeat with the next pattern."""
COLOURS: Mapping[str, tuple[str, str]] = {
    "s0": ("#0060b0", "#60a5fa"),
    "s1": ("#c2410c", "#fb923c"),
    "s2": ("#00795c", "#34d399"),
    "s3": ("#a8327e", "#f0a3d4"),
    "s4": ("#8a6100", "#facc15"),
    "s5": ("#0e7f9c", "#67e8f9"),
    "s6": ("#6b46c1", "#c4b5fd"),
    "s7": ("#4b5563", "#cbd5e1"),
    "axis": ("#6b7280", "#9ca3af"),
    "grid": ("#e5e7eb", "#333b47"),
    "shade": ("#eef2f7", "#1c222b"),
    "ink": ("#1f2933", "#e5e9f0"),
    "paper": ("#ffffff", "#14181f"),
}
"""Colours by name: first for a white background, then for a black one."""
Place = tuple[float, float]
MARKS: Sequence[Sequence[Place]] = (
    tuple((3.5 * cos(part * pi / 8), 3.5 * sin(part * pi / 8)) for part in range(16)),
    ((-3.2, -3.2), (3.2, -3.2), (3.2, 3.2), (-3.2, 3.2)),
    ((0, -4.2), (4, 3.2), (-4, 3.2)),
    ((0, -4.5), (4.5, 0), (0, 4.5), (-4.5, 0)),
    ((0, 4.2), (4, -3.2), (-4, -3.2)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Polyline:
    """A line through points."""

    places: Sequence[Place]
    colour: str
    width: float = 1.0
    dash: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Polygon:
    """A filled area."""

    places: Sequence[Place]
    colour: str
    opacity: float = 1.0
    tooltip: str = ""
    data: Mapping[str, str | float] = field(default_factory=dict)
    """The values that the shape represents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rectangle:
    """An axis-aligned filled rectangle."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    opacity: float = 1.0
    tooltip: str = ""
    data: Mapping[str, str | float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """A line of text on the baseline `y`."""

    text: str
    x: float
    y: float
    anchor: Literal["start", "middle", "end"] = "start"
    colour: str = "ink"
    size: float = TEXT


Shape = Polyline | Polygon | Rectangle | Writing


@dataclass(slots=True, kw_only=True)
class Drawing:
    """The shapes drawn so far, in order, and how far down they extend."""

    width: float
    title: str
    description: str
    shapes: list[Shape] = field(default_factory=list)
    bottom: float = 0.0

    def add(self, *shapes: Shape) -> None:
        """Add shapes on top of earlier ones."""
        self.shapes += shapes

    def write(
        self,
        lines: Sequence[str],
        x: float,
        y: float,
        *,
        anchor: Literal["start", "middle", "end"] = "start",
        colour: str = "ink",
        size: float = TEXT,
    ) -> None:
        """Add lines of text, starting on the baseline `y`."""
        for number, line in enumerate(lines):
            at = y + number * LINE * size / TEXT
            self.add(Writing(text=line, x=x, y=at, anchor=anchor, colour=colour, size=size))
            self.bottom = max(self.bottom, at + GAP / 2)

    def level(self, left: float, right: float, y: float, *, colour: str) -> None:
        """Add a thin horizontal line."""
        self.add(Polyline(places=((left, y), (right, y)), colour=colour))

    def upright(self, x: float, top: float, bottom: float, *, colour: str) -> None:
        """Add a thin vertical line."""
        self.add(Polyline(places=((x, top), (x, bottom)), colour=colour))


def mark(
    number: int, place: Place, colour: str, *, tooltip: str = "", data: Mapping[str, str | float]
) -> Polygon:
    """Return the marker for a point of a series."""
    corners = MARKS[number % len(MARKS)]
    places = tuple((place[0] + x, place[1] + y) for x, y in corners)
    return Polygon(places=places, colour=colour, tooltip=tooltip, data=data)


def text_width(text: str, size: float = TEXT) -> float:
    """Estimate the width of text, erring on the wide side."""
    return sum(_sign_width(sign) for sign in text) * size


def widest(lines: Sequence[str]) -> float:
    """Return the width of the longest line, or 0 if there are none."""
    return max(map(text_width, lines), default=0.0)


def broken(text: str, width: float, size: float = TEXT) -> list[str]:
    """Wrap text into lines at most `width` wide; break a word only if it is too wide by itself."""
    lines = [""]
    for word in one_line(text).split():
        joined = f"{lines[-1]} {word}".strip()
        if text_width(joined, size) <= width:
            lines[-1] = joined
            continue
        lines.append("")
        for sign in word:
            if text_width(lines[-1] + sign, size) > width:
                lines.append("")
            lines[-1] += sign
    return [line for line in lines if line]


def _sign_width(sign: str) -> float:
    if east_asian_width(sign) in "WF":
        return 1.05
    if sign in " .,:;'|!ijltfI()[]/":
        return 0.4
    return 1.0 if sign in "mwMWQO@%&" else 0.72 if sign.isupper() else 0.64
