"""A page: what a suite has to say, in sections that any renderer can draw and that know no suite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuproof.records.result import Measure

Tone = Literal["plain", "strong", "faint", "good", "warn", "bad"]
"""How a text is set off; each renderer has its own way."""
Align = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class Cell:
    """A text and its tone."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The head of a column; figures stand to the right, words to the left."""

    title: str
    align: Align = "right"
    folds: bool = False
    """Whether long texts may be broken over lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a page opens with: the word, why, the figure and how certain it is, and what to do."""

    word: str
    tone: Tone
    reason: str
    """In one line; empty where the word says all."""
    headline: str = ""
    """The figure as people read it; empty where there is none."""
    uncertainty: str = ""
    limit: str = ""
    """What limited it, in one line; empty where nothing was measured."""
    advice: str | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that is known of where figures come from; its text is None where it is not known."""

    name: str
    text: str | None
    missing: str = ""
    """Why it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """When, where, on which devices and by which versions figures were measured, and how to repeat it."""

    facts: tuple[Fact, ...]
    command: Fact
    details: tuple[Fact, ...] = ()
    """Hashes of the recipe and the data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """Figures, a row each: name, text, detail."""

    title: str
    measures: tuple[Measure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells under headers; headers without any title are not shown."""

    title: str
    headers: tuple[Header, ...]
    rows: tuple[tuple[Cell, ...], ...]
    is_folded: bool = False
    """Whether it is closed until somebody asks for it: what is right, or says nothing."""


@dataclass(frozen=True, slots=True)
class MeasureCell:
    """A measure, and how it reads in a cell."""

    measure: Measure
    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pivot:
    """Measures side by side: cells with what a row's measures have in common, then a figure a column."""

    title: str
    headers: tuple[Header, ...]
    rows: tuple[tuple[Cell | MeasureCell, ...], ...]
    is_folded: bool = False
    """As that of a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What is along one side of a chart."""

    label: str
    unit: str = ""
    is_logarithmic: bool = False
    names: tuple[str, ...] = ()
    """Of the places 0, 1, 2 …, where no numbers stand there; of the vertical axis rows, from the top."""
    reach: tuple[float, ...] = ()
    """Values that the axis has at least; the horizontal one ends with them."""
    ticks: tuple[float, ...] = ()
    """Where ticks stand, if not at round numbers: at all that was measured, where that is few."""


Form = Literal["marked", "line", "dashed", "step", "band", "points", "bar", "tick", "range"]
"""A line with a mark a point, without, dashed, or level until the next point; the area between the ranges;
marks; bars; a short line across; and a broad bar from one end of a range to the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points of one name, in order; in a line, one that is no number is a gap."""

    name: str
    """Series of the same name have one colour, and one place in the legend."""
    points: tuple[tuple[float, float], ...]
    ranges: tuple[tuple[float, float], ...] = ()
    """Of each point the lowest and highest that it may be; empty where that is not known. Along x in rows."""
    form: Form | None = None
    """None is as the chart's kind says."""
    colour: str = ""
    """As #c0392b, or `ink` or `axis` for what is no series of its own; empty is the next one of the chart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A straight line across a chart: a bound, a limit, a value that was found; without a label, an event."""

    label: str
    x: float | None = None
    y: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shade:
    """A stretch along the horizontal axis, such as a phase; of those that touch, every other is shaded."""

    name: str
    begin: float
    end: float
    colour: str = ""
    """As #c0392b; empty is the one of all stretches that have a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A picture of few series. A renderer without pictures writes the points as a table."""

    title: str
    kind: Literal["line", "scatter", "bar"]
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    references: tuple[Reference, ...] = ()
    shades: tuple[Shade, ...] = ()
    is_stacked: bool = False
    """Whether the bars at one place stand on one another: parts of a whole, none of them below 0."""
    is_in_a_table: bool = False
    """Whether a table of the page has the points already, so that nobody needs to write them as another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Charts that stand together, in a file or in a page; those below each other share an axis."""

    title: str
    subtitle: str
    charts: tuple[Chart, ...]
    widths: tuple[float, ...] = (1.0,)
    """Of the columns, to each other."""

    @property
    def is_timeline(self) -> bool:
        """Whether all charts are over the same time, so that people look into a part of it."""
        return len(self.widths) == 1 and all(chart.x.unit == "s" for chart in self.charts)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatCell:
    """How one thing ended for one subject, as a word, and all there is to say of it."""

    word: str
    tone: Tone
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """Words by row and column, each of which opens to what it stands for; in words, other sections say it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[HeatCell | None, ...]], ...]
    """A name, and a cell a column; None where there is nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One doubt, failure or outcome: its word, what it is, and what to do."""

    word: str
    tone: Tone
    text: str
    advice: str | None = None
    code: str = ""
    """Of a doubt, by which docs/verdicts.md explains it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notices:
    """Doubts, failures or outcomes, the gravest first."""

    title: str
    notices: tuple[Notice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Sentences, a line each."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """What may be typed next, as it can be pasted into a shell."""

    title: str
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """A folder and the names of what lies in it."""

    title: str
    folder: str
    names: tuple[str, ...]


Section = Measures | Pivot | Table | Chart | Picture | HeatMap | Notices | Text | Commands | Files
"""A section without a title goes on with the one before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a run, or anything else that is judged, has to say."""

    title: str
    verdict: Verdict | None
    sections: tuple[Section, ...]
    provenance: Provenance | None = None
    """None until whoever shows the page puts it in: a suite does not know it."""
