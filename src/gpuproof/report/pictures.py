"""Pictures as files, SVG, PNG or PDF as the name says, and as the data that a page's script reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

from gpuproof.base.errors import EnvironmentUnfitError, UsageError
from gpuproof.base.files import aside
from gpuproof.records.page import Chart, Picture, Series
from gpuproof.report.charts import picture_drawing, series_numbers
from gpuproof.report.marks import SeriesStyle, style_of
from gpuproof.report.raster import save_image
from gpuproof.report.svg import svg_file


def write_picture(picture: Picture, path: Path) -> None:
    """Write a picture in the format that its name ends in: aside first, then renamed.

    Raises:
        UsageError: the name ends in none of them.
        EnvironmentUnfitError: Pillow is not installed, or the file cannot be written.
    """
    kind = path.suffix.removeprefix(".").lower()
    if kind not in ("png", "svg", "pdf"):
        raise UsageError(
            "is no picture that can be drawn", place=str(path), next_step="End its name in .png, .svg or .pdf"
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
            save_image(drawing, place, kind)


def picture_data(picture: Picture | Chart) -> dict[str, Any]:
    """Return what a picture is drawn from, as JSON: columns of numbers to six digits, null for a gap."""
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
