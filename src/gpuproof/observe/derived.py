"""Which files are derived from a command's recording? Readings, summary, plot and comparison.

Input: the recording and the stem of the file names, `results/gpu_stats_<config>_<timestamp>`. Output: the
files written, and the reason for each file that could not be written: one failure does not affect the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gpuproof.base.errors import GpuproofError
from gpuproof.base.files import write_array, write_text
from gpuproof.comparison.page import recordings_page
from gpuproof.comparison.recordings import compare
from gpuproof.observe.recording_page import recording_page, recording_result
from gpuproof.observe.timeline import recording_picture
from gpuproof.readings.formats import load
from gpuproof.readings.formats.exports import gpu_stats_rows, gputop_multi_gpu_samples, gputop_samples
from gpuproof.readings.recording import RecordingData
from gpuproof.readings.selection import MULTI_GPU_ENDING, of_recording, side_by_side
from gpuproof.records.page import Page
from gpuproof.report.formats import render_page
from gpuproof.report.pictures import write_picture

OutputFormat = Literal["native", "gputop", "adamwprune"]
_Part = tuple[Path, Callable[[Path], object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The files to create from a recording."""

    stem: Path
    """The common prefix of every path, before `.json`, `_summary.txt`, `_plot.png` …"""
    format: OutputFormat = "native"
    metadata: Mapping[str, Any]
    """The model and configuration, added to each row's `training_metadata`."""
    plot: bool = False
    compare_with: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """The files that were created, and the failures."""

    written: tuple[Path, ...]
    failures: tuple[str, ...]
    comparison: str | None
    """The text of the comparison, if one was requested and could be created."""


def write_derived(recording: RecordingData, wanted: Wanted) -> Derived:
    """Write every requested file; a failure is recorded in the result and does not stop the rest."""
    written, failures = [], []
    comparison: str | None = None
    for path, write in _parts(recording, wanted):
        try:
            outcome = write(path)
        except GpuproofError as error:
            failures.append(str(error))
            continue
        written.append(path)
        comparison = outcome if isinstance(outcome, str) else comparison
    return Derived(written=tuple(written), failures=tuple(failures), comparison=comparison)


def _parts(recording: RecordingData, wanted: Wanted) -> Iterator[_Part]:
    def named(ending: str) -> Path:
        return wanted.stem.with_name(wanted.stem.name + ending)

    if wanted.format == "gputop":
        yield named(".json"), lambda path: write_array(path, gputop_samples(recording))
        if len(recording.devices) > 1:
            together = gputop_multi_gpu_samples(recording)
            yield named(f"{MULTI_GPU_ENDING}.json"), lambda path: write_array(path, together)
    else:
        is_older = wanted.format == "adamwprune"
        rows = gpu_stats_rows(recording, metadata=wanted.metadata, is_older=is_older)
        yield named(".json"), lambda path: write_array(path, rows)
    yield named("_summary.txt"), lambda path: _write_summary(recording, path)
    if wanted.plot:
        yield named("_plot.png"), lambda path: write_picture(recording_picture(recording), path)
    if wanted.compare_with is not None:
        other = wanted.compare_with
        yield named("_comparison.txt"), lambda path: _write_comparison(recording, path, other=other)


def _write_summary(recording: RecordingData, path: Path) -> None:
    _write_page(recording_page(recording_result(recording), of_recording(recording)), path)


def _write_page(page: Page, path: Path) -> str:
    text = render_page(page, "terminal")
    write_text(path, text)
    return text


def _write_comparison(recording: RecordingData, path: Path, *, other: Path) -> str:
    before = load(other)
    sides = side_by_side(of_recording(before), of_recording(recording))
    return _write_page(recordings_page(compare(before, recording), sides), path)
