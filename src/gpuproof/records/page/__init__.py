"""A page: a suite's report, in sections that any renderer can draw, independent of the suite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuproof.records.result import Measure

Tone = Literal["plain", "strong", "faint", "good", "warn", "bad"]
"""How text is highlighted; each renderer does this in its own way."""
Align = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class Cell:
    """Text and its tone."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A column's header; numbers are right-aligned, text is left-aligned."""

    title: str
    align: Align = "right"
    folds: bool = False
    """Whether long text may be wrapped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The top of a page: the verdict, the reason, the result and its uncertainty, and what to do."""

    word: str
    tone: Tone
    reason: str
    """A one-line reason; empty if the verdict says it all."""
    headline: str = ""
    """The result in readable form; empty if there is no result."""
    uncertainty: str = ""
    limit: str = ""
    """What limited the result, on one line; empty if nothing was measured."""
    advice: str | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact about the origin of the results; its text is None if unknown."""

    name: str
    text: str | None
    missing: str = ""
    """Why the fact is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """When, where, on which devices and versions results were measured, and how to reproduce them."""

    facts: tuple[Fact, ...]
    command: Fact
    details: tuple[Fact, ...] = ()
    """Hashes of the recipe and the data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """Results, one per row: name, text and detail."""

    title: str
    measures: tuple[Measure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells below headers; the header row is hidden if no column has a title."""

    title: str
    headers: tuple[Header, ...]
    rows: tuple[tuple[Cell, ...], ...]
    is_folded: bool = False
    """Whether the table is collapsed by default, for content that is correct or not informative."""


@dataclass(frozen=True, slots=True)
class MeasureCell:
    """A measure, and its text for a table cell."""

    measure: Measure
    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pivot:
    """Measures side by side: cells for a row's shared attributes, then one value per column."""

    title: str
    headers: tuple[Header, ...]
    rows: tuple[tuple[Cell | MeasureCell, ...], ...]
    is_folded: bool = False
    """Whether the table is collapsed by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis of a chart."""

    label: str
    unit: str = ""
    is_logarithmic: bool = False
    names: tuple[str, ...] = ()
    """Labels for positions 0, 1, 2 …, if the axis has no numbers; rows on the vertical axis count from the
    top."""
    reach: tuple[float, ...] = ()
    """Values that the axis always includes; the horizontal axis ends exactly at them."""
    ticks: tuple[float, ...] = ()
    """Tick positions, if not at round numbers: at every measured value, if there are few."""


Form = Literal["marked", "line", "dashed", "step", "band", "points", "bar", "tick", "range"]
"""How a series is drawn: a line with a marker per point; a line without marks; a dashed line; a line that is
level until the next point; the area between the ranges; marks; bars; a short line across; or a broad bar from
one end of a range to the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points under one name, in order; in a line, a NaN is a gap."""

    name: str
    """Series with the same name share a colour and a legend entry."""
    points: tuple[tuple[float, float], ...]
    ranges: tuple[tuple[float, float], ...] = ()
    """The minimum and maximum of each point; empty if unknown. If the vertical axis has rows, the ranges run
    along x."""
    form: Form | None = None
    """How the series is drawn; None uses the chart's kind."""
    colour: str = ""
    """Colour, e.g. #c0392b, or `ink` or `axis` for anything that is not a separate series; empty uses the
    chart's next colour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A straight line across a chart: a bound, a limit or a detected value; an event if unlabelled."""

    label: str
    x: float | None = None
    y: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shade:
    """A stretch of the horizontal axis, such as a phase; adjacent ones are shaded alternately."""

    name: str
    begin: float
    end: float
    colour: str = ""
    """Colour, e.g. #c0392b; if empty, the common colour of named intervals is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart of a few series. A renderer without charts writes its points as a table."""

    title: str
    kind: Literal["line", "scatter", "bar"]
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    references: tuple[Reference, ...] = ()
    shades: tuple[Shade, ...] = ()
    is_stacked: bool = False
    """Whether bars at the same position are stacked, as parts of a whole; no part may be below 0."""
    is_in_a_table: bool = False
    """Whether a table on the page already contains the points, so that no second table is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Charts that belong together in a file or on a page; those below each other share an axis."""

    title: str
    subtitle: str
    charts: tuple[Chart, ...]
    widths: tuple[float, ...] = (1.0,)
    """Ratio of the columns' widths."""

    @property
    def is_timeline(self) -> bool:
        """Whether all charts cover the same time range, so that they can be zoomed together."""
        return len(self.widths) == 1 and all(chart.x.unit == "s" for chart in self.charts)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatCell:
    """The status of one check for one subject, as a word, with all details."""

    word: str
    tone: Tone
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """Status words by row and column that expand to details; in text, other sections show these."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[HeatCell | None, ...]], ...]
    """A name and one cell per column, where None means that there is nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One warning, failure or outcome: its status word, its description and what to do about it."""

    word: str
    tone: Tone
    text: str
    advice: str | None = None
    code: str = ""
    """For a warning, the code, as explained in docs/verdicts.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notices:
    """Warnings, failures or outcomes, most severe first."""

    title: str
    notices: tuple[Notice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Sentences, one per line."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """Suggested next commands, ready to paste into a shell."""

    title: str
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """A folder and the names of the files in it."""

    title: str
    folder: str
    names: tuple[str, ...]


Section = Measures | Pivot | Table | Chart | Picture | HeatMap | Notices | Text | Commands | Files
"""A section of a page; without a title, it continues the previous one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The report of a run, or of anything else that is evaluated."""

    title: str
    verdict: Verdict | None
    sections: tuple[Section, ...]
    provenance: Provenance | None = None
    """Origin of the results; None until the page is shown, because a suite does not know it."""
