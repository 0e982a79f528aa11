"""The files of a matrix in S4's form, derived from the run: a folder a case, a summary, and pictures.

test_matrix_results_<time>/
  config.txt all_results.json summary_report.txt
  <case>/ gpu_stats_<case>_<time>.json, _summary.txt, _plot.png, output.log, error.txt, and what was kept
  graphs/ gpu_memory_timeline.png training_memory_comparison.png comparison.png
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from gpuproof.base import units
from gpuproof.base.files import link_plain
from gpuproof.readings.evidence import Evidence, MissingReadings
from gpuproof.readings.recording import RecordingData
from gpuproof.records.case import Case
from gpuproof.records.result import Result, weakening
from gpuproof.records.work.command import ERROR_LOG, FILES, OUTPUT_LOG
from gpuproof.suites.base import Export, PictureContent, RecordingFiles
from gpuproof.suites.exports import json_export
from gpuproof.suites.matrix.figures import CaseFigures, as_row
from gpuproof.suites.matrix.pictures import comparison, memory_bars, memory_timeline

STAMP = "%Y%m%d_%H%M%S"
TREE = "test_matrix_results_"


def tree_name(created: str) -> str:
    """Name the folder of a matrix after the time at which its run was made.

    >>> tree_name("2026-11-22T13:05:09+00:00")
    'test_matrix_results_20261122_130509'
    """
    return f"{TREE}{datetime.fromisoformat(created):{STAMP}}"


def exports_of(cases: Sequence[CaseFigures], result: Result, evidence: Evidence) -> Iterator[Export]:
    """Yield every file; what cannot be drawn is said when it is written."""
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


def graphs_of(cases: Sequence[CaseFigures], result: Result, folder: str, *, seed: str) -> Iterator[Export]:
    """Yield the pictures of a matrix."""
    ranking = result.detail["ranking"]
    compared = partial(comparison, cases, metric=ranking["metric"], better=ranking["better"], seed=seed)
    for name, make in (
        ("gpu_memory_timeline", partial(memory_timeline, cases)),
        ("training_memory_comparison", partial(memory_bars, cases)),
        ("comparison", compared),
    ):
        yield Export(name=f"{folder}/{name}.png", content=PictureContent(make))


def _case_exports(figures: CaseFigures, case: Case, evidence: Evidence, tree: str) -> Iterator[Export]:
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
        if path.is_file() and path.resolve().is_relative_to(collected_in)  # no link out of a foreign folder
    ]
    logs = [path for log in (OUTPUT_LOG, ERROR_LOG) if (path := source / log).is_file()]
    for path in (*logs, *collected):
        relative = path.relative_to(source / FILES) if path in collected else Path(path.name)
        yield Export(name=f"{folder}/{relative}", content=partial(link_plain, path.resolve()))


def _recording(evidence: Evidence, case: Case, host: str) -> RecordingData:
    recording = evidence.recording(case, host)
    assert not isinstance(recording, MissingReadings)  # it was looked at when the export was made
    return recording


def _config_text(evidence: Evidence) -> str:
    """Write down where it comes from: every name in it can be found in the run's own files."""
    description = evidence.description
    return (
        f"run: {description['run_id']}\nsource: {description['source']}\ncreated: {description['created']}\n"
    )


def summary_text(cases: Sequence[CaseFigures], result: Result) -> str:
    """Write the summary: each case's outcome, memory, energy and time, then what was compared."""
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
    best = ranking["best"] or f"none named: {ranking['missing']}"
    lines += ["", f"Best by {ranking['metric']}: {best}"]
    lines += [f"{doubt.validity}: {doubt.reason}" for doubt in weakening(result.doubts)]
    return "\n".join(lines) + "\n"
