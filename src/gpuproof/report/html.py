"""A page as one self-contained HTML file: no network, no fonts, and a script only for timelines.

The template escapes all text except plots and their data, which escape their own text. The page's content
security policy lists its style and script by their hashes, so a browser runs and loads nothing else.

>>> "<title>1 &lt; 2</title>" in html(pages.Page(title="1 < 2", verdict=None, sections=()))
True
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from functools import cache, partial
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from gpuproof.records import page as pages
from gpuproof.report.charts import NARROW, WIDTH, chart_drawing, picture_drawing
from gpuproof.report.page_parts import (
    NOTHING,
    chart_as_table,
    column_blocks,
    is_empty,
    measures_as_table,
    needed_width,
    several_lines,
    unknown_facts,
)
from gpuproof.report.pictures import picture_data
from gpuproof.report.svg import STYLE, svg_element

STYLE_HASH = "sha256-of-style"
"""Placeholder in the template for the hash of the page's style."""
LONG_WORD, LONGEST_PART = re.compile(r"(\S{20,})"), 30
SEPARATOR = re.compile(r"(?<=[/>_=,:;])(?=\w)")
"""Separators after which a long word may be broken; any part longer than `LONGEST_PART` may be broken
anywhere."""
TABLE_WIDTH = 110
"""Maximum width of a table in character cells; wider tables are split into several."""


def html(page: pages.Page) -> str:
    """Return the page as an HTML file."""
    pictures = (section for section in page.sections if isinstance(section, pages.Picture))
    timelines = [picture for picture in pictures if picture.is_timeline]
    data = json.dumps([picture_data(one) for one in timelines], separators=(",", ":"), allow_nan=False)
    script = _part("report/uplot/uPlot.iife.min.js") + _part("templates/timelines.js") if timelines else ""
    style = STYLE + _part("templates/pictures.css") + _part("report/uplot/uPlot.min.css") * bool(timelines)
    text = _template().render(
        page=page,
        chart_style=Markup(style),  # noqa: S704 - ours
        nothing=NOTHING,
        timelines=timelines,
        timeline_data=Markup(data.replace("<", "\\u003c")),  # noqa: S704 - no element can end in it
        script=Markup(script),  # noqa: S704 - ours
        script_hash=_hash(script),
    )
    return text.replace(STYLE_HASH, _hash(text.partition("<style>")[2].partition("</style>")[0]), 1)


@cache
def _part(name: str) -> str:
    return files("gpuproof").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the hash that identifies a text in a content security policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("gpuproof"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_without_controls,
    )
    environment.filters["kind"] = lambda section: type(section).__name__
    environment.filters["figures"] = measures_as_table
    environment.filters["points"] = chart_as_table
    environment.filters["blocks"] = partial(column_blocks, width=TABLE_WIDTH)
    environment.filters["needs"] = needed_width
    environment.filters["picture"] = _picture
    environment.filters["breakable"] = _breakable
    environment.filters["unknown"] = unknown_facts
    environment.tests["long"] = _has_long_part
    environment.tests["nothing"] = is_empty
    environment.globals["narrow"] = NARROW
    return environment.get_template("page.html")


def _without_controls(value: object) -> object:
    return several_lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _breakable(text: str) -> Markup:
    """Return a text in which long words may be broken between their parts, but other words may not."""
    words = enumerate(LONG_WORD.split(several_lines(text)))  # every second part is a long word
    parts = (SEPARATOR.split(word) if place % 2 else [word] for place, word in words)
    return Markup("").join(Markup("<wbr>").join(map(escape, of_word)) for of_word in parts)


def _has_long_part(text: str) -> bool:
    parts = (part for word in LONG_WORD.findall(text) for part in SEPARATOR.split(word))
    return any(len(part) > LONGEST_PART for part in parts)


def _picture(section: pages.Chart | pages.Picture, width: float = WIDTH) -> Markup:
    """Return an image as an element with all text escaped; narrow ones are for phones."""
    if isinstance(section, pages.Chart):
        return Markup(svg_element(chart_drawing(section, width=width)))  # noqa: S704
    widths = section.widths if width > NARROW else (1.0,)
    picture = replace(section, title="", subtitle="", widths=widths)
    drawing = replace(picture_drawing(picture, width=width), title=section.title)
    return Markup(svg_element(drawing))  # noqa: S704
