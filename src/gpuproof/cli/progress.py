"""Campaign progress: a bar with the time left on a terminal, plain lines in a log."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from gpuproof.base import units
from gpuproof.base.outside import plain
from gpuproof.campaign.scheduler import CampaignProgress
from gpuproof.cli.options import HEADINGS, say
from gpuproof.launches.launch import summarize_launch
from gpuproof.launches.point_measures import THROUGHPUT
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Phase, Setup, Steps
from gpuproof.records.run import Progress as StepsDone
from gpuproof.suites.base import LaunchKey, launch_key

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from gpuproof.launchers.base import HostError

PHASES = {
    "prepare": "preparing",
    "count": "counting floating-point operations",
    "compile": "compiling",
    "capture": "capturing the step as a CUDA graph",
    "warmup": "warming up",
    "settle": "settling",
    "observe": "inspecting one step",
    "measure": "measuring",
    "check": "comparing with a reference",
    "evaluate": "evaluating",
    "own_compute": "timing each device on its own",
    "breakdown": "timing forward, backward and optimizer separately",
    "ceilings": "measuring this device's ceilings",
    "casts": "timing conversions to fp8",
    "busy": "measuring how busy the device is",
    "profile": "profiling",
    "wait": "waiting for a device",
    "command": "running the command",
    "finish": "finishing",
}
LINE_EVERY_S = 10.0
OLDER_TRAINING = "run_single_node.sh"
"""Script of the training benchmark; its users expect one line per epoch."""


class CaseProgress:
    """Progress of one launch, assembled from its records."""

    def __init__(
        self, case: Case, *, hosts: Sequence[str] = (), position: int, total: int, more: bool = False
    ) -> None:
        name = case.case_id.partition("@")[0]  # the host of a case is shown before the name
        point = "" if name == "main" else f" {name}"
        others = f" and {len(hosts) - 1} more" if len(hosts) > 1 else ""
        where = f"{hosts[0]}{others}: " if hosts else ""
        of = f", at least {total}" if more else f"/{total}"
        self.title = f"{where}launch {position}{of}{point}"
        self.phase = "starting"
        self.fraction: float | None = None
        self.steps_done = 0
        self._expected_steps: int | None = None
        self._expected_s: float | None = None
        self._began_s = 0.0
        self._in_steps_s = 0.0
        self._items_per_step, self._item = 1, "operations"  # until the setup record says what is counted
        self._waits_for_steps = case.measures_latency
        self._share = " per process" if case.placement.num_ranks > 1 else ""

    def advance(self, records: Sequence[Any]) -> None:
        """Process new records."""
        for record in records:
            if isinstance(record, Phase) and record.event == "begin":
                self._begin(record)
            elif isinstance(record, Setup):
                self._items_per_step, self._item = record.items_per_step, record.item
                if self._share and record.device.kind != "cpu":
                    self._share = " per GPU"
            elif isinstance(record, Steps):
                self.steps_done += len(record.durations_s)
                self._in_steps_s += sum(record.durations_s)
            elif isinstance(record, StepsDone):
                self.steps_done = record.steps_done
        self.fraction = min(self._fractions(), default=None)

    def _fractions(self) -> Iterator[float]:
        """Yield the completed fraction of the phase, by time and by steps; the lower value applies."""
        if self._expected_s:
            yield min(1.0, (monotonic() - self._began_s) / self._expected_s)
        if self._expected_steps:
            yield min(1.0, self.steps_done / self._expected_steps)

    def _begin(self, phase: Phase) -> None:
        self.phase = PHASES[phase.name]
        self._expected_steps, self._expected_s = phase.expected_steps, phase.expected_s
        self._began_s = monotonic()
        self.steps_done, self._in_steps_s, self.fraction = 0, 0.0, None

    @property
    def speed(self) -> str:
        """Speed of the first rank so far, if available."""
        if self.steps_done == 0 or self._in_steps_s == 0:
            return ""
        if self._waits_for_steps:
            return f"{units.seconds(self._in_steps_s / self.steps_done)} a step"
        rate = self.steps_done * self._items_per_step / self._in_steps_s
        return f"{units.rate(rate, self._item)}{self._share}"


class BarProgress:
    """Shows one bar per launch, on a terminal."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._cases: dict[LaunchKey, tuple[CaseProgress, TaskID]] = {}

    def says(self, line: str) -> None:
        """Print a line above the bars."""
        self._bars.console.print(plain(line), markup=False, highlight=False)

    def case_begins(
        self, case: Case, *, hosts: Sequence[str], position: int, total: int, more: bool = False
    ) -> None:
        """Add a bar."""
        shown = CaseProgress(case, hosts=hosts, position=position, total=total, more=more)
        task = self._bars.add_task(shown.title, total=None, phase="starting", speed="")
        self._cases[launch_key(case)] = shown, task

    def case_advances(self, case: Case, records: Sequence[Any]) -> None:
        """Update the bar."""
        shown, task = self._cases[launch_key(case)]
        phase = shown.phase
        shown.advance(records)
        total = 1.0 if shown.fraction is not None else None
        if shown.phase != phase:
            self._bars.reset(task, total=total)
        self._bars.update(
            task, total=total, completed=shown.fraction or 0.0, phase=shown.phase, speed=shown.speed
        )

    def case_ends(self, records: CaseRecords) -> None:
        """Leave the bar in its final state."""
        _, task = self._cases.pop(launch_key(records.case))
        done = records.status == "done"
        self._bars.update(
            task, total=1.0, completed=1.0 if done else 0.0, phase="done" if done else records.status
        )
        self._bars.stop_task(task)

    def host_failed(self, error: HostError) -> None:
        """Report that a host dropped out."""
        self.says(_host_line(error))


class LineProgress:
    """One line when the first launch starts, one as each finishes, at most one every ten seconds.

    The ten-second limit is shared by all launches, so that many hosts or short launches do not flood the log.
    """

    def __init__(self) -> None:
        self._cases: dict[LaunchKey, CaseProgress] = {}
        self._last_line_s = -inf

    def says(self, line: str) -> None:
        """Print a line."""
        say(line, err=True)

    def case_begins(
        self, case: Case, *, hosts: Sequence[str], position: int, total: int, more: bool = False
    ) -> None:
        """Report that a launch started."""
        key = launch_key(case)
        self._cases[key] = CaseProgress(case, hosts=hosts, position=position, total=total, more=more)
        if self._is_due():
            self._say(key, "starting")

    def case_advances(self, case: Case, records: Sequence[Any]) -> None:
        """Report the phase and its progress if the last line was printed at least ten seconds ago."""
        key = launch_key(case)
        shown = self._cases[key]
        shown.advance(records)
        if self._is_due():
            percent = int(100 * (shown.fraction or 0.0))  # an estimate: more digits would not be accurate
            far = f", {percent} %" if percent else ""
            speed = f", {shown.speed}" if shown.speed else ""
            self._say(key, f"{shown.phase}{far}{speed}")

    def case_ends(self, records: CaseRecords) -> None:
        """Report how a launch ended, and how fast it was."""
        key = launch_key(records.case)
        self._say(key, f"{records.status}{_speed(records)}")
        del self._cases[key]

    def host_failed(self, error: HostError) -> None:
        """Report that a host dropped out."""
        self.says(_host_line(error))

    def _is_due(self) -> bool:
        return monotonic() - self._last_line_s >= LINE_EVERY_S

    def _say(self, key: LaunchKey, what: str) -> None:
        self._last_line_s = monotonic()
        self.says(f"{self._cases[key].title}: {what}")


class HeadedProgress(LineProgress):
    """Progress lines of a scaling study: `Run i/N` for each launch, under a heading per batch size."""

    def __init__(self, num_runs: int) -> None:
        super().__init__()
        self._num_runs, self._batch_size = num_runs, ""

    def case_begins(
        self, case: Case, *, hosts: Sequence[str], position: int, total: int, more: bool = False
    ) -> None:
        """Report which run is starting, and for which batch size."""
        batch_size, _, devices = case.case_id.partition("@")[0].removeprefix("bs").partition("-n")
        if batch_size != self._batch_size:
            self.says(f"=== Batch size {batch_size} ===")
        self._batch_size = batch_size
        num_devices, _, law = devices.partition("-")
        of = f"{num_devices} device{'s' * (num_devices != '1')}{law and f', {law}'}"
        self.says(f"Run {case.replicate + 1}/{self._num_runs} ({of})")
        super().case_begins(case, hosts=hosts, position=position, total=total, more=more)


class EpochProgress(LineProgress):
    """Lines of a training benchmark: one per epoch in a launch's window, printed when it finishes."""

    def case_ends(self, records: CaseRecords) -> None:
        """Report how a launch ended, and list its epochs."""
        from gpuproof.suites.recipe.exports import epoch_lines

        super().case_ends(records)
        launch = summarize_launch(records) if records.status == "done" and records.windows else None
        samples = records.case.model_work.data.samples_per_epoch if launch else 1
        for line in epoch_lines([launch] if launch else [], samples_per_epoch=samples).splitlines():
            row = json.loads(line)
            rate = units.rate(row["throughput_samples_per_s"], "samples")
            self.says(f"epoch {row['epoch']}: {rate}, {units.seconds(row['epoch_time_s'])}")


def _speed(records: CaseRecords) -> str:
    """Return the throughput of a launch that counts items per second, or nothing for other launches."""
    if records.status != "done" or records.case.measures_latency or not records.windows:
        return ""
    launch = summarize_launch(records)
    return "" if launch is None else f", {units.rate(launch.figures[THROUGHPUT], launch.setup.item)}"


def _host_line(error: HostError) -> str:
    return f"{error.host}: failed at {error.stage}: {error.cause}"


@contextmanager
def progress_on(*, one_at_a_time: bool = True) -> Iterator[CampaignProgress]:
    """Return the progress display for standard error: bars if one launch runs at a time."""
    context = click.get_current_context(silent=True)
    if context is not None and HEADINGS in context.meta:
        yield HeadedProgress(context.params["runs"])
        return
    is_older = sys.argv[1:2] == [OLDER_TRAINING]
    if is_older or not (sys.stderr.isatty() and one_at_a_time):
        yield EpochProgress() if is_older else LineProgress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[phase]}"),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[speed]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=False) as bars:
        yield BarProgress(bars)
