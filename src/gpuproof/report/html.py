"""A page as one HTML file that needs nothing else: no network, no script, no font.

The template escapes every text but pictures, which escape theirs.

>>> "<title>1 &lt; 2</title>" in html(pages.Page(title="1 < 2", verdict=None, sections=()))
True
"""

from __future__ import annotations

from functools import cache, partial

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from gpuproof.records import page as pages
from gpuproof.report.charts import chart_drawing
from gpuproof.report.page_parts import (
    NOTHING,
    chart_as_table,
    column_blocks,
    is_empty,
    measures_as_table,
    needed_width,
    several_lines,
)
from gpuproof.report.svg import STYLE, svg_element

WIDTH = 110
"""Character cells of a table; wider ones are shared out over several."""


def html(page: pages.Page) -> str:
    """Return the page as an HTML file."""
    return _template().render(page=page, chart_style=Markup(STYLE), nothing=NOTHING)  # noqa: S704


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
    environment.filters["kind"] = _kind
    environment.filters["figures"] = measures_as_table
    environment.filters["points"] = chart_as_table
    environment.filters["blocks"] = partial(column_blocks, width=WIDTH)
    environment.filters["needs"] = needed_width
    environment.filters["picture"] = _picture
    environment.tests["nothing"] = is_empty
    return environment.get_template("page.html")


def _without_controls(value: object) -> object:
    return several_lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _kind(section: pages.Section) -> str:
    return type(section).__name__


def _picture(chart: pages.Chart) -> Markup:
    return Markup(svg_element(chart_drawing(chart)))  # noqa: S704 - it escapes every text itself
