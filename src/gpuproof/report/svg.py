"""What a chart is drawn with: the elements of an SVG picture, text in lines, colours for light and for dark.

Text has no measured width here: it is estimated, rather too wide, and broken over lines rather than cut off.

>>> broken("a bound that is long", 80)
['a bound', 'that is long']
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from unicodedata import east_asian_width

from gpuproof.report.page_parts import one_line

TEXT = 12.0
"""Height of the letters, in pixels, as all lengths here."""
LINE = 16.0
"""From one line of text to the next."""
GAP = 8.0
NUM_COLOURS = 8
DASHES = ("", "7 3", "2 3", "9 3 2 3")
"""From the ninth series on, colours come again with another dash."""
MARKS = (
    "M-3.5,0a3.5,3.5 0 1,0 7,0a3.5,3.5 0 1,0 -7,0z",
    "M-3.2,-3.2h6.4v6.4h-6.4z",
    "M0,-4.2L4,3.2H-4z",
    "M0,-4.5L4.5,0L0,4.5L-4.5,0z",
    "M0,4.2L4,-3.2H-4z",
)
STYLE = """
.chart { --s0: #0060b0; --s1: #c2410c; --s2: #00795c; --s3: #a8327e; --s4: #8a6100; --s5: #0e7f9c;
  --s6: #6b46c1; --s7: #4b5563; --axis: #6b7280; --grid: #e5e7eb; --ink: #1f2933; --paper: #ffffff }
@media screen and (prefers-color-scheme: dark) { .chart {
  --s0: #60a5fa; --s1: #fb923c; --s2: #34d399; --s3: #f0a3d4; --s4: #facc15; --s5: #67e8f9;
  --s6: #c4b5fd; --s7: #cbd5e1; --axis: #9ca3af; --grid: #333b47; --ink: #e5e9f0; --paper: #14181f } }
.chart text { font: 12px system-ui, sans-serif; fill: var(--ink); paint-order: stroke; stroke: var(--paper);
  stroke-width: 3px; stroke-linejoin: round }
.chart .tick { fill: var(--axis) }
.chart .grid { stroke: var(--grid); stroke-width: 1 }
.chart .axis { stroke: var(--axis); stroke-width: 1 }
.chart .reference { stroke: var(--ink); stroke-width: 1.2; stroke-dasharray: 5 4; fill: none }
.chart .line { fill: none; stroke-width: 2; stroke-linejoin: round }
"""
STYLE += "".join(
    f".chart .line.s{n} {{ stroke: var(--s{n}) }} .chart .fill.s{n} {{ fill: var(--s{n}) }}\n"
    for n in range(NUM_COLOURS)
)


@dataclass(slots=True)
class Drawing:
    """The elements that were drawn so far, and how far down they reach."""

    parts: list[str]
    bottom: float = 0.0

    def add(self, name: str, text: str = "", *, tooltip: str = "", **attributes: str | float) -> None:
        """Add an element; an empty value stands for no attribute, and `class_` for class."""
        written = "".join(
            f' {key.rstrip("_").replace("_", "-")}="{escape(pixels(value))}"'
            for key, value in attributes.items()
            if value != ""
        )
        inside = f"<title>{escape(one_line(tooltip))}</title>" if tooltip else escape(text)
        self.parts.append(f"<{name}{written}>{inside}</{name}>")

    def write(
        self, lines: Sequence[str], x: float, y: float, *, anchor: str = "start", kind: str = ""
    ) -> None:
        """Add lines of text, the first one on the base line `y`."""
        for number, line in enumerate(lines):
            self.add("text", line, x=x, y=y + number * LINE, text_anchor=anchor, class_=kind)
        self.bottom = max(self.bottom, y + (len(lines) - 1) * LINE + GAP / 2)

    def mark(self, number: int, x: float, y: float, *, tooltip: str = "") -> None:
        """Add the mark of a point of a series."""
        self.add(
            "path",
            d=MARKS[number % len(MARKS)],
            transform=f"translate({pixels(x)},{pixels(y)})",
            class_=f"fill {colour(number)}",
            tooltip=tooltip,
        )


def text_width(text: str) -> float:
    """Estimate the width of a text, rather too high than too low."""
    return sum(_sign_width(sign) for sign in text) * TEXT


def broken(text: str, width: float) -> list[str]:
    """Break a text into lines that are at most `width` wide, within a word only where one alone is wider."""
    lines = [""]
    for word in one_line(text).split():
        joined = f"{lines[-1]} {word}".strip()
        if text_width(joined) <= width:
            lines[-1] = joined
            continue
        lines.append("")
        for sign in word:
            if text_width(lines[-1] + sign) > width:
                lines.append("")
            lines[-1] += sign
    return [line for line in lines if line]


def _sign_width(sign: str) -> float:
    if east_asian_width(sign) in "WF":
        return 1.05
    if sign in " .,:;'|!ijltfI()[]/":
        return 0.4
    return 1.0 if sign in "mwMWQO@%&" else 0.72 if sign.isupper() else 0.64


def pixels(value: object) -> str:
    """Write a length as short as a tenth of a pixel allows, and anything else as it is."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def colour(number: int) -> str:
    """Return the class of a series."""
    return f"s{number % NUM_COLOURS}"
