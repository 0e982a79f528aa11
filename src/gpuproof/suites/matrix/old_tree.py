"""Read a folder `test_matrix_results_…` of the older test matrix as cases of this suite.

The input is the folder that contains, where they exist, each test's training_metrics.json (in either form),
its recording in any format, and its row of all_results.json. A tree with only recordings yields only memory
results. The output is metrics per case, and the same result and page as for a run. A test's memory is the
memory of its whole GPU, because nothing else was recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuproof import __version__
from gpuproof.base.errors import GpuproofError, UsageError
from gpuproof.base.outside import parse_json
from gpuproof.comparison.winners import compare_sides
from gpuproof.config.models import RunConfig
from gpuproof.readings.energy import energy_used
from gpuproof.readings.evidence import Evidence
from gpuproof.readings.formats import load
from gpuproof.readings.formats.rows import MIB_BYTES
from gpuproof.readings.recording import RecordingData
from gpuproof.readings.selection import recordings_in
from gpuproof.readings.window import whole
from gpuproof.records.result import OLDER, Result
from gpuproof.records.work.command import FileMetrics, read_metrics
from gpuproof.suites.base import Export
from gpuproof.suites.matrix.case_values import NO_DEVICE, SCHEDULES, Amount, CaseValues, device_memory
from gpuproof.suites.matrix.compare import CONFIDENCE, configurations
from gpuproof.suites.matrix.conclude import matrix_result
from gpuproof.suites.matrix.exports import graphs_of
from gpuproof.suites.matrix.measures import MEAN_MEMORY
from gpuproof.suites.matrix.plan import kind_of

RESULTS, METRICS = "all_results.json", "training_metrics.json"
ERROR = "error.txt"
OF_A_TEST = (METRICS, "gpu_stats_*", "output.log", ERROR)
FIELDS = ("model", "optimizer", "variant", "pruning", "target_sparsity", "tokenizer", "seed")
TIMES = ("elapsed_time", "total_time", "total_training_time")


def is_old_tree(folder: Path) -> bool:
    """Report whether a folder contains tests of an older matrix rather than one of gpuproof's runs."""
    if not folder.is_dir() or (folder / "run.json").exists():
        return False
    return (
        (folder / RESULTS).is_file() or any(folder.glob(f"*/{METRICS}")) or any(folder.glob("*/gpu_stats_*"))
    )


def read_old_tree(folder: Path) -> list[CaseValues]:
    """Read every test in the folder.

    Raises:
        UsageError: it contains no tests.
    """
    rows = _rows(folder / RESULTS)
    tests = sorted(
        path
        for path in folder.iterdir()
        if path.is_dir() and (path.name in rows or any(any(path.glob(pattern)) for pattern in OF_A_TEST))
    )
    if not tests:
        raise UsageError(f"contains no test with {METRICS} or gpu_stats_*", place=str(folder))
    if not rows and not any((path / METRICS).exists() for path in tests):
        return [_recorded_case(path) for path in tests]
    return _told_apart([_case(path, rows.get(path.name, {})) for path in tests])


def _told_apart(cases: Sequence[CaseValues]) -> list[CaseValues]:
    """Name the tests that the known fields do not tell apart, so that they are not taken for repeats."""
    same = Counter(tuple(case.assignment.items()) for case in cases)
    if max(same.values()) == 1:
        return list(cases)
    named = [{**case.assignment, "test": case.case_id} for case in cases]
    return [
        replace(case, assignment=assignment, configuration=kind_of(assignment, RunConfig()))
        for case, assignment in zip(cases, named, strict=True)
    ]


def _rows(path: Path) -> dict[str, Mapping[str, Any]]:
    try:
        content = parse_json(path.read_text(encoding="utf-8")) if path.is_file() else []
    except ValueError as error:
        raise UsageError(
            f"not JSON: {error}", place=str(path), next_step="Repair it, or move it away"
        ) from error
    rows = content if isinstance(content, list) else []
    return {str(row["test_id"]): row for row in rows if isinstance(row, Mapping) and "test_id" in row}


def _case(folder: Path, row: Mapping[str, Any]) -> CaseValues:
    metrics, missing = _metrics(folder / METRICS)
    values = {
        **{
            name: float(value)
            for name, value in row.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        },
        **metrics.values,
    }
    assignment = {name: row[name] for name in FIELDS if row.get(name) is not None} or {"test": folder.name}
    succeeded = row.get("success", missing is None)
    recording, unread = _recording(folder)
    energy_j, energy_missing = _energy(recording)
    memory = Amount(missing=unread) if recording is None else device_memory(recording)
    return CaseValues(
        case_id=folder.name,
        replicate=0,
        configuration=kind_of(assignment, RunConfig()),
        assignment=assignment,
        status="done" if succeeded else "failed",
        failure=None if succeeded else str(row.get("error") or missing or "its files say that it failed"),
        exit_status=None,
        wall_s=next((values[name] for name in TIMES if name in values), None),
        metrics={name: value for name, value in values.items() if name not in (*FIELDS, *TIMES)},
        metrics_missing=missing,
        schedules={name: metrics.series[name] for name in SCHEDULES if name in metrics.series},
        memory=memory,
        resident=Amount(missing="resident memory was not read"),
        energy_j=energy_j,
        energy_missing=energy_missing or unread,
        devices=tuple(track.identity.name for track in recording.devices) if recording else (),
        host=None,
    )


def _recorded_case(folder: Path) -> CaseValues:
    """Return a test from a tree with only recordings; it is done if its recording contains memory data."""
    case = _case(folder, {"success": not (folder / ERROR).exists(), "error": f"it left {ERROR}"})
    memory = case.memory.mean_bytes
    if case.status == "done" and memory is None:
        case = replace(case, status="failed", failure=case.memory.missing)
    metrics = {} if memory is None else {MEAN_MEMORY: memory}
    return replace(case, metrics=metrics, metrics_missing=None)


def _metrics(path: Path) -> tuple[FileMetrics, str | None]:
    try:
        return read_metrics(path.read_text(encoding="utf-8", errors="replace")), None
    except (OSError, ValueError) as error:
        reason = f"there is no {path.name}" if isinstance(error, FileNotFoundError) else str(error)
        return FileMetrics(), f"{path.parent.name}: {reason}"


def _recording(folder: Path) -> tuple[RecordingData | None, str | None]:
    """Load the newest recording of a test, or report why there is none."""
    try:
        return load(recordings_in(folder)[-1]), None
    except GpuproofError as error:
        return None, error.cause


def _energy(recording: RecordingData | None) -> tuple[float | None, str | None]:
    if recording is None or not recording.devices:
        return None, None if recording is None else NO_DEVICE
    energies = [energy_used(recording, track=track, window=whole(recording)) for track in recording.devices]
    lacking = [energy.note or "" for energy in energies if energy.energy_j is None]
    return (None, lacking[0]) if lacking else (sum(energy.energy_j or 0.0 for energy in energies), None)


def tree_evidence(folder: Path) -> Evidence:
    """Return an older tree's description in a run's format; gpuproof started none of its launches."""
    description = {"run_id": folder.name, "gpuproof_version": __version__, "source": str(folder)}
    return Evidence(
        description=description,
        config=RunConfig(),
        launches=(),
        hosts=(),
        recording_at=lambda _case, _host: None,
        folder_of=lambda _case: folder,
    )


def pictures_of(cases: Sequence[CaseValues], result: Result) -> Iterator[Export]:
    """Return the plots of an older tree, from its folder graphs/."""
    return graphs_of(cases, result, "graphs", seed="seed")


def conclude_old_tree(folder: Path) -> tuple[list[CaseValues], Result]:
    """Return the cases of an older tree, and their result.

    Raises:
        UsageError: it contains no tests.
    """
    cases = read_old_tree(folder)
    title = f"{folder.name}, {len(cases)} tests of an older matrix"
    notes = [case.metrics_missing for case in cases if case.metrics_missing]
    read = "memory is that of the whole GPU, as it was recorded; energy is integrated power"
    result = matrix_result(
        cases,
        tree_evidence(folder),
        title=title,
        num_planned=len(cases),
        doubts=(OLDER,),
        notes=(read, *notes),
    )
    return cases, replace(result, headline=_memory_headline(cases) or result.headline)


def _memory_headline(cases: Sequence[CaseValues]) -> str:
    """Compare the two lowest mean memory values from recordings; empty if another metric is compared."""
    done = [case for case in cases if case.status == "done"]
    if not all(MEAN_MEMORY in case.metrics for case in done):
        return ""
    rows = configurations(done, MEAN_MEMORY, "lower", seed="seed")
    if len(rows) < 2:
        return ""
    low, high = sorted(rows, key=lambda row: row.mean or 0.0)[:2]
    less, more = low.mean or 0.0, high.mean or 0.0
    compared = compare_sides(high.side, low.side, better="lower", confidence=CONFIDENCE, figure=MEAN_MEMORY)
    span, reason = compared.ratio, compared.reason
    sure = f"cannot tell whether this applies to other runs: {reason}"
    if span is not None:
        sure = f"{100 * (1 - span.high):.1f} – {100 * (1 - span.low):.1f} %"
    return (
        f"mean memory {less / MIB_BYTES:,.1f} MiB compared with {more / MIB_BYTES:,.1f} MiB: "
        f"{100 * (1 - less / more):.1f} % less ({low.name} compared with {high.name}; {sure})"
    )
