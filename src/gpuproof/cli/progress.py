"""How a campaign's progress is shown: a bar with the time left on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from gpuproof import units
from gpuproof.campaign import Progress as ProgressProtocol
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Phase, Setup, Steps
from gpuproof.records.run import Progress as StepsDone

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PHASES = {
    "prepare": "preparing",
    "count": "counting work",
    "compile": "compiling",
    "capture": "capturing the step",
    "warmup": "warming up",
    "observe": "observing a step",
    "measure": "measuring",
    "evaluate": "evaluating",
    "ceilings": "measuring ceilings",
    "profile": "profiling",
    "finish": "finishing",
}
LINE_EVERY_S = 10.0


class CaseProgress:
    """Where one launch stands, put together from its records."""

    def __init__(self, case: Case, *, position: int, total: int) -> None:
        name = case.case_id.partition("@")[0]  # the host of a fleet's case stands before the line
        point = "" if name == "main" else f" {name}"
        self.title = f"launch {position}/{total}{point}"
        self.phase = "starting"
        self.fraction: float | None = None
        self.steps_done = 0
        self._expected_steps: int | None = None
        self._expected_s: float | None = None
        self._began_s = 0.0
        self._in_steps_s = 0.0
        self._items_per_step = case.data.batch_size
        self._item = "samples"
        self._waits_for_steps = case.measures_latency

    def advance(self, records: Sequence[Any]) -> None:
        """Take new records in."""
        for record in records:
            if isinstance(record, Phase) and record.event == "begin":
                self._begin(record)
            elif isinstance(record, Setup):
                self._items_per_step, self._item = record.items_per_step, record.item
            elif isinstance(record, Steps):
                self.steps_done += len(record.durations_s)
                self._in_steps_s += sum(record.durations_s)
            elif isinstance(record, StepsDone):
                self.steps_done = record.steps_done
        if self._expected_s:
            self.fraction = min(1.0, (monotonic() - self._began_s) / self._expected_s)
        elif self._expected_steps:
            self.fraction = self.steps_done / self._expected_steps

    def _begin(self, phase: Phase) -> None:
        self.phase = PHASES[phase.name]
        self._expected_steps, self._expected_s = phase.expected_steps, phase.expected_s
        self._began_s = monotonic()
        self.steps_done, self._in_steps_s, self.fraction = 0, 0.0, None

    @property
    def speed(self) -> str:
        """The first rank's speed so far, or nothing."""
        if self.steps_done == 0 or self._in_steps_s == 0:
            return ""
        if self._waits_for_steps:
            return f"{units.seconds(self._in_steps_s / self.steps_done)} a step"
        return f"{units.rate(self.steps_done * self._items_per_step / self._in_steps_s, self._item)} a rank"


class BarProgress:
    """A bar for each launch, on a terminal."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._case: CaseProgress
        self._task: TaskID

    def says(self, line: str) -> None:
        """Print a line above the bars."""
        self._bars.console.print(line, markup=False, highlight=False)

    def case_begins(self, case: Case, *, position: int, total: int) -> None:
        """Add a bar."""
        self._case = CaseProgress(case, position=position, total=total)
        self._task = self._bars.add_task(self._case.title, total=None, phase="starting", speed="")

    def case_advances(self, records: Sequence[Any]) -> None:
        """Move the bar."""
        phase = self._case.phase
        self._case.advance(records)
        if self._case.phase != phase:
            self._bars.reset(self._task, total=1.0 if self._case.fraction is not None else None)
        self._bars.update(
            self._task,
            total=1.0 if self._case.fraction is not None else None,
            completed=self._case.fraction or 0.0,
            phase=self._case.phase,
            speed=self._case.speed,
        )

    def case_ends(self, records: CaseRecords) -> None:
        """Leave the bar as it ended."""
        done = records.status == "done"
        self._bars.update(
            self._task, total=1.0, completed=1.0 if done else 0.0, phase="done" if done else records.status
        )
        self._bars.stop_task(self._task)


class LineProgress:
    """A line when a phase begins, and one every ten seconds, in a log."""

    def __init__(self, *, before: str = "", say: Callable[[str], None] | None = None) -> None:
        """Begin each line with `before`, and hand it to `say`, or to standard error."""
        self._case: CaseProgress
        self._said_s = 0.0
        self._before = before
        self._say_line = say or (lambda line: click.echo(line, err=True))

    def says(self, line: str) -> None:
        """Print a line."""
        click.echo(line, err=True)

    def case_begins(self, case: Case, *, position: int, total: int) -> None:
        """Say that a launch begins."""
        self._case = CaseProgress(case, position=position, total=total)
        self._say("starting")

    def case_advances(self, records: Sequence[Any]) -> None:
        """Say a new phase at once, and how far it is every ten seconds."""
        phase = self._case.phase
        self._case.advance(records)
        if self._case.phase != phase:
            self._say(self._case.phase)
        elif monotonic() - self._said_s >= LINE_EVERY_S:
            far = f", {units.share(self._case.fraction)}" if self._case.fraction is not None else ""
            speed = f", {self._case.speed}" if self._case.speed else ""
            self._say(f"{self._case.phase}{far}{speed}")

    def case_ends(self, records: CaseRecords) -> None:
        """Say how a launch ended."""
        self._say(records.status)

    def _say(self, what: str) -> None:
        self._said_s = monotonic()
        self._say_line(f"{self._before}{self._case.title}: {what}")


@contextmanager
def progress_on() -> Iterator[ProgressProtocol]:
    """Give the progress that fits standard error."""
    if not sys.stderr.isatty():
        yield LineProgress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[phase]}"),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[speed]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=False) as bars:
        yield BarProgress(bars)
