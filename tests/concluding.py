"""Reading what a run was concluded to: its page as text, the parts of it, and the detail of its result."""

from __future__ import annotations

from typing import TypeVar

from gpuproof.campaign.conclude import Concluded
from gpuproof.records.codec import from_json
from gpuproof.records.page import (
    Cell,
    Chart,
    Commands,
    Files,
    MeasureCell,
    Measures,
    Page,
    Pivot,
    Table,
    Text,
)
from gpuproof.records.result import Doubt, Measure
from gpuproof.report.terminal import terminal_text

T = TypeVar("T")


def text_of(concluded: Concluded, *, width: int = 150) -> str:
    """Return the page as a log of that width has it."""
    return terminal_text(concluded.page, width=width)


def words_of(concluded: Concluded, *, width: int = 200) -> str:
    """Return the page's words, whatever lines they are on."""
    return " ".join(text_of(concluded, width=width).split())


def detail_of(kind: type[T], concluded: Concluded) -> T:
    """Return what the suite's page is drawn from, read back from the result."""
    return from_json(kind, concluded.result.detail)


def measure_of(concluded: Concluded, name: str) -> Measure:
    """Return the one measure of a name."""
    (found,) = [measure for measure in concluded.result.measures if measure.name == name]
    return found


def doubt_of(concluded: Concluded, code: str) -> Doubt:
    """Return the one doubt of a code."""
    (found,) = [doubt for doubt in concluded.result.doubts if doubt.code == code]
    return found


def lines_of(concluded: Concluded, title: str) -> list[str]:
    """Return the sentences under a title, those of untitled sections after it included."""
    lines: list[str] = []
    above = ""
    for section in concluded.page.sections:
        above = section.title or above
        if above == title and isinstance(section, Text):
            lines += section.lines
    return lines


def notes_of(concluded: Concluded) -> list[str]:
    """Return the notes."""
    return lines_of(concluded, "Notes")


def table_of(concluded: Concluded, title: str) -> list[dict[str, Cell | MeasureCell]]:
    """Return the rows of a table or pivot, each by its columns' titles."""
    (found,) = [x for x in concluded.page.sections if isinstance(x, Pivot | Table) and x.title == title]
    titles = [header.title for header in found.headers]
    return [dict(zip(titles, row, strict=True)) for row in found.rows]


def figures_of(concluded: Concluded) -> list[Measure]:
    """Return the measures that stand on the page, in the order in which they are read."""
    return figures_on(concluded.page)


def figures_on(page: Page) -> list[Measure]:
    """Return the measures that stand on a page, in the order in which they are read."""
    figures: list[Measure] = []
    for section in page.sections:
        match section:
            case Measures():
                figures += section.measures
            case Pivot():
                figures += (
                    cell.measure for row in section.rows for cell in row if isinstance(cell, MeasureCell)
                )
            case _:
                pass
    return figures


def are_figures_measures(concluded: Concluded) -> bool:
    """Say whether every figure that stands on the page is a measure of the result."""
    measures = concluded.result.measures
    same = {id(measure) for measure in measures}
    return all(id(figure) in same or figure in measures for figure in figures_of(concluded))


def unmeasured_marks(concluded: Concluded, *titles: str) -> list[tuple[str, float]]:
    """Return the marks of these charts that are the value of no measure, with the name of their series."""
    values = {measure.value for measure in concluded.result.measures}
    charts = [x for x in concluded.page.sections if isinstance(x, Chart) and x.title in titles]
    assert len(charts) == len(titles)
    return [
        (series.name, y)
        for chart in charts
        for series in chart.series
        for _, y in series.points
        if y not in values
    ]


def commands_of(concluded: Concluded) -> tuple[str, ...]:
    """Return what may be typed next."""
    (found,) = [section for section in concluded.page.sections if isinstance(section, Commands)]
    return found.commands


def files_of(concluded: Concluded) -> Files:
    """Return the run directory and the names of what lies in it."""
    (found,) = [section for section in concluded.page.sections if isinstance(section, Files)]
    return found
