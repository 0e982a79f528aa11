"""Pictures as files: SVG, PNG or PDF, as the name of the file says."""

from __future__ import annotations

from pathlib import Path

from gpuproof.errors import EnvironmentUnfitError, UsageError
from gpuproof.files import aside
from gpuproof.records.page import Picture
from gpuproof.report.charts import picture_drawing
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
