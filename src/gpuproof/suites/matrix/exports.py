"""Create a matrix's files in S4's format from the run: a folder per case, a summary, and plots.

test_matrix_results_<time>/
  config.txt all_results.json summary_report.txt
  <case>/ gpu_stats_<case>_<time>.json, _summary.txt, _plot.png, output.log, error.txt, and what was kept
  graphs/ gpu_memory_timeline.png training_memory_comparison.png comparison.png

The plots show memory over time, memory as bars, and the compared metric with its intervals.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from gpuproof.base import units
from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.base.files import link_plain
from gpuproof.readings.evidence import Evidence, MissingReadings
from gpuproof.readings.recording import RecordingData
from gpuproof.records.case import Case
from gpuproof.records.page import Axis, Chart, Picture, Series
from gpuproof.records.result import Better, Result, weakening
from gpuproof.records.work.command import ERROR_LOG, FILES, OUTPUT_LOG
from gpuproof.suites.base import Export, PictureContent, RecordingFiles
from gpuproof.suites.matrix.case_values import Amount, CaseValues, as_row, shown_memory
from gpuproof.suites.matrix.compare import configurations
from gpuproof.suites.results import json_export

STAMP = "%Y%m%d_%H%M%S"
TREE = "test_matrix_results_"
MOST = 24
"""Maximum number of lines or rows in one plot."""


def tree_name(created: str) -> str:
    """Return the folder name of a matrix, based on its run's creation time.

    >>> tree_name("2026-11-22T13:05:09+00:00")
    'test_matrix_results_20261122_130509'
    """
    return f"{TREE}{datetime.fromisoformat(created):{STAMP}}"


def exports_of(cases: Sequence[CaseValues], result: Result, evidence: Evidence) -> Iterator[Export]:
    """Yield every file; if a plot cannot be drawn, that is reported when it is written."""
    tree = tree_name(evidence.description["created"])
    yield json_export(f"{tree}/all_results.json", [as_row(case) for case in cases])
    yield Export(name=f"{tree}/summary_report.txt", content=summary_text(cases, result))
    yield Export(name=f"{tree}/config.txt", content=_config_text(evidence))
    by_key = {(case.case_id, case.replicate): case for case in cases}
    for records in evidence.launches:
        figures = by_key.get((records.case.case_id, records.case.replicate))
        if figures is not None:
            yield from _case_exports(figures, records.case, evidence, tree)
    if cases:
        yield from graphs_of(cases, result, f"{tree}/graphs", seed=evidence.config.cases.seed)


def graphs_of(cases: Sequence[CaseValues], result: Result, folder: str, *, seed: str) -> Iterator[Export]:
    """Yield the plots of a matrix."""
    ranking = result.detail["ranking"]
    compared = partial(comparison, cases, metric=ranking["metric"], better=ranking["better"], seed=seed)
    for name, make in (
        ("gpu_memory_timeline", partial(memory_timeline, cases)),
        ("training_memory_comparison", partial(memory_bars, cases)),
        ("comparison", compared),
    ):
        yield Export(name=f"{folder}/{name}.png", content=PictureContent(make))


def _case_exports(figures: CaseValues, case: Case, evidence: Evidence, tree: str) -> Iterator[Export]:
    name = figures.case_id if figures.replicate == 0 else f"{figures.case_id}-{figures.replicate + 1}"
    folder, source = f"{tree}/{name}", evidence.folder_of(case)
    if figures.host is not None and not isinstance(evidence.recording(case, figures.host), MissingReadings):
        stamp = time.strftime(STAMP, time.localtime(figures.began_unix_s))
        metadata = {"config": figures.case_id, **figures.assignment}
        load = partial(_recording, evidence, case, figures.host)
        yield Export(name=f"{folder}/gpu_stats_{name}_{stamp}", content=RecordingFiles(load, metadata))
    collected_in = (source / FILES).resolve()
    collected = [
        path
        for path in sorted((source / FILES).rglob("*"))
        if path.is_file()
        # do not follow links out of a folder that was copied from elsewhere
        and path.resolve().is_relative_to(collected_in)
    ]
    logs = [path for log in (OUTPUT_LOG, ERROR_LOG) if (path := source / log).is_file()]
    for path in (*logs, *collected):
        relative = path.relative_to(source / FILES) if path in collected else Path(path.name)
        yield Export(name=f"{folder}/{relative}", content=partial(link_plain, path.resolve()))


def _recording(evidence: Evidence, case: Case, host: str) -> RecordingData:
    recording = evidence.recording(case, host)
    assert not isinstance(recording, MissingReadings)  # the file was checked when the export was built
    return recording


def _config_text(evidence: Evidence) -> str:
    """Record the origin of the export; every name in it also occurs in the run's own files."""
    description = evidence.description
    return (
        f"run: {description['run_id']}\nsource: {description['source']}\ncreated: {description['created']}\n"
    )


def summary_text(cases: Sequence[CaseValues], result: Result) -> str:
    """Write the summary: each case's outcome, memory, energy and time, then the comparison."""
    lines = [f"{result.headline}", f"{result.verdict}", ""]
    for case in cases:
        memory, resident = units.memory(case.memory.peak_bytes), units.memory(case.resident.peak_bytes)
        lines += [
            f"{case.case_id} (launch {case.replicate + 1}): {case.failure or case.status}",
            f"  time {units.seconds(case.wall_s)}; GPU memory, peak: {memory} "
            f"({case.memory.basis or case.memory.missing}); resident, peak: {resident}",
        ]
        if case.energy_j is not None:
            lines.append(f"  energy {units.significant(case.energy_j, 4)} J")
        lines += [f"  {name} = {value:g}" for name, value in case.metrics.items()]
    ranking = result.detail["ranking"]
    best = ranking["best"] or f"none: {ranking['missing']}"
    lines += ["", f"Best by {ranking['metric']}: {best}"]
    lines += [f"{doubt.validity}: {doubt.reason}" for doubt in weakening(result.doubts)]
    return "\n".join(lines) + "\n"


def memory_timeline(cases: Sequence[CaseValues]) -> Picture:
    """Return memory use over time for each configuration's first launch.

    Raises:
        EnvironmentUnfitError: no case has memory values.
    """
    memory = shown_memory(cases)
    shown = _firsts(cases, lambda case: bool(memory(case).course))
    left_out = f"; {len(shown) - MOST} more configurations are not drawn" if len(shown) > MOST else ""
    shown = shown[:MOST]
    chart = Chart(
        title="",
        kind="line",
        x=Axis(label="time since each started", unit="s", reach=(0.0,)),
        y=Axis(label="memory", unit="B", reach=(0.0,)),
        series=tuple(
            Series(name=case.configuration, points=memory(case).course, form="step") for case in shown
        ),
    )
    return Picture(
        title="Memory over time",
        subtitle=f"{_bases(shown, memory)}; first launch of each of {len(shown)} configurations{left_out}",
        charts=(chart,),
    )


def memory_bars(cases: Sequence[CaseValues]) -> Picture:
    """Return mean and peak memory of each configuration's first launch.

    Raises:
        EnvironmentUnfitError: as for `memory_timeline`.
    """
    memory = shown_memory(cases)
    shown = _firsts(cases, lambda case: memory(case).peak_bytes is not None)[:MOST]
    means = [(mean, float(row)) for row, c in enumerate(shown) if (mean := memory(c).mean_bytes) is not None]
    peaks = [(peak, float(row)) for row, c in enumerate(shown) if (peak := memory(c).peak_bytes) is not None]
    chart = Chart(
        title="",
        kind="bar",
        x=Axis(label="memory", unit="B"),
        y=Axis(label="", names=tuple(case.configuration for case in shown)),
        series=(
            Series(name="mean", points=tuple(means)),
            Series(name="peak", points=tuple(peaks), form="tick", colour="ink"),
        ),
    )
    return Picture(title="Memory of the cases", subtitle=_bases(shown, memory), charts=(chart,))


def comparison(cases: Sequence[CaseValues], *, metric: str, better: Better, seed: str) -> Picture:
    """Return the compared metric of each configuration: its launches, their mean and its interval.

    Raises:
        EnvironmentUnfitError: no case has a value.
    """
    shown = [one for one in configurations(cases, metric, better, seed=seed) if one.mean is not None][:MOST]
    _refuse_without(shown, f"no case has {metric}")
    intervals = [(float(row), one.interval) for row, one in enumerate(shown) if one.interval is not None]
    chart = Chart(
        title="",
        kind="scatter",
        x=Axis(label=metric),
        y=Axis(label="", names=tuple(one.name for one in shown)),
        series=(
            Series(
                name="95 % interval of the mean",
                points=tuple((low, row) for row, (low, _) in intervals),
                ranges=tuple(ends for _, ends in intervals),
                form="range",
            ),
            Series(
                name="a launch",
                points=tuple((v, float(n)) for n, one in enumerate(shown) for v in one.values),
            ),
            Series(
                name="mean",
                points=tuple((one.mean or 0.0, float(row)) for row, one in enumerate(shown)),
                form="tick",
                colour="ink",
            ),
        ),
    )
    return Picture(title=metric, subtitle=f"{better} is better", charts=(chart,))


def _firsts(cases: Sequence[CaseValues], is_shown: Callable[[CaseValues], bool]) -> list[CaseValues]:
    """Return the first launch of each configuration that has memory values.

    Raises:
        EnvironmentUnfitError: no launch has memory values.
    """
    first: dict[str, CaseValues] = {}
    for case in filter(is_shown, cases):
        first.setdefault(case.configuration, case)
    _refuse_without(first, "no case has memory over time")
    return list(first.values())


def _refuse_without(drawn: object, reason: str) -> None:
    if not drawn:
        raise EnvironmentUnfitError(reason)


def _bases(shown: Sequence[CaseValues], memory: Callable[[CaseValues], Amount]) -> str:
    return ", ".join(dict.fromkeys(memory(case).basis for case in shown))
