"""Write a drawing as SVG: an element in a page, or a separate file. Text is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from gpuproof.report.drawing import (
    COLOURS,
    TEXT,
    Drawing,
    Place,
    Polygon,
    Polyline,
    Rectangle,
    Shape,
    Writing,
)
from gpuproof.report.page_parts import one_line


def _palette(place: int) -> str:
    """Return the CSS variables for the colours on a white background, or on a black one."""
    return "; ".join(f"--{name}: {shades[place]}" for name, shades in COLOURS.items())


STYLE = f"""
.chart {{ {_palette(0)} }}
@media screen and (prefers-color-scheme: dark) {{ .chart {{ {_palette(1)} }} }}
.chart text {{ font-family: system-ui, "DejaVu Sans", sans-serif; paint-order: stroke; stroke: var(--paper);
  stroke-width: 3px; stroke-linejoin: round }}
.chart .line {{ fill: none; stroke-linejoin: round }}
""" + "".join(
    f".chart .line.{name} {{ stroke: var(--{name}) }} .chart .fill.{name} {{ fill: var(--{name}) }}\n"
    for name in COLOURS
)


def svg_element(drawing: Drawing, *, space: str = "", inside: str = "") -> str:
    """Return the drawing as an element as wide as its container; `inside` precedes its shapes."""
    title, description = escape(one_line(drawing.title)), escape(one_line(drawing.description))
    size = f'viewBox="0 0 {drawing.width:.0f} {drawing.bottom:.0f}" font-size="{TEXT:.0f}"'
    shapes = "\n".join(map(_shape, drawing.shapes))
    head = f"<title>{title}</title><desc>{description}</desc>{inside}"
    return f'<svg{space} class="chart" role="img" aria-label="{title}" {size}>{head}\n{shapes}</svg>'


def svg_file(drawing: Drawing) -> str:
    """Return the drawing as a self-contained file with its own background."""
    ground = '<rect class="fill paper" width="100%" height="100%"/>'
    space = f' xmlns="http://www.w3.org/2000/svg" width="{drawing.width:.0f}" height="{drawing.bottom:.0f}"'
    return f"{svg_element(drawing, space=space, inside=f'<style>{STYLE}</style>{ground}')}\n"


def _shape(shape: Shape) -> str:
    match shape:
        case Polyline():
            dash = " ".join(map(pixels, shape.dash))
            width = "" if shape.width == 1 else pixels(shape.width)
            named = {"d": f"M{_path(shape.places)}", "stroke-width": width, "stroke-dasharray": dash}
            return _element("path", {**_painted("line", shape.colour), **named})
        case Polygon():
            return _element(
                "path", {"d": f"M{_path(shape.places)}z", **_filled(shape)}, tooltip=shape.tooltip
            )
        case Rectangle():
            sides = {key: pixels(getattr(shape, key)) for key in ("x", "y", "width", "height")}
            return _element("rect", {**sides, **_filled(shape)}, tooltip=shape.tooltip)
        case Writing():
            at = {"x": pixels(shape.x), "y": pixels(shape.y), "text-anchor": shape.anchor}
            size = "" if shape.size == TEXT else pixels(shape.size)
            named = {**at, "font-size": size, **_painted("fill", shape.colour)}
            return _element("text", named, text=shape.text)


def _element(name: str, attributes: Mapping[str, str], *, text: str = "", tooltip: str = "") -> str:
    """Return an element; attributes with an empty value are omitted."""
    written = "".join(f' {key}="{escape(value)}"' for key, value in attributes.items() if value)
    inside = f"<title>{escape(one_line(tooltip))}</title>" if tooltip else escape(text)
    return f"<{name}{written}>{inside}</{name}>"


def _filled(shape: Polygon | Rectangle) -> Mapping[str, str]:
    opacity = "" if shape.opacity == 1 else f"{shape.opacity:g}"
    data = {f"data-{key}": one_line(str(value)) for key, value in shape.data.items()}
    return {**_painted("fill", shape.colour), "fill-opacity": opacity, **data}


def _painted(kind: str, colour: str) -> Mapping[str, str]:
    """Return a colour as an SVG value; named colours differ on a dark background."""
    if colour in COLOURS:
        return {"class": f"{kind} {colour}"}
    return {"class": kind, "stroke" if kind == "line" else "fill": colour}


def _path(places: Sequence[Place]) -> str:
    return "L".join(f"{pixels(x)},{pixels(y)}" for x, y in places)


def pixels(length: float) -> str:
    """Format a length as briefly as possible, to a tenth of a pixel."""
    return f"{length:.1f}".removesuffix(".0")
