"""Which recording does a name or pattern refer to, and where do its readings come from?

The input is what a user typed: a path, a directory or a glob such as `results/gpu_stats_run1_*.json`. The
output is the newest match, with a sentence if there were other candidates. For a recording, or for two sides
A and B, it also returns the `Provenance` that every page starts with. Unknown values are None with the
reason.

>>> device_text({"NVIDIA H200": 8, "NVIDIA A100": 1})
'8 × NVIDIA H200, NVIDIA A100'
"""

from __future__ import annotations

import glob
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from gpuproof.base.errors import UsageError
from gpuproof.readings.recording import RecordingData
from gpuproof.records.page import Fact, Provenance

RECORDING_SUFFIXES = (".jsonl", ".json", ".csv")
"""File types that a pattern may match: recordings, not the summaries and plots next to them."""

MULTI_GPU_ENDING = "_multi_gpu"
"""Stem of the second file that gputop writes for a run."""
UNTYPED: Final = "it was created next to a recording, or on its node"
NO_FRAMEWORK: Final = "a recording covers drivers and the host, not a framework"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """The selected file, and what to tell the user about the selection."""

    path: Path
    note: str | None


def newest_match(*patterns: str) -> Selected:
    """Resolve paths, directories or globs to one file: the newest; on a tie, the last by name.

    Among a run's files, the JSON Lines file is preferred, as the others were created from it. A single path
    is used unchanged.

    Raises:
        UsageError: nothing matches one of the patterns.
    """
    if len(patterns) == 1 and Path(patterns[0]).is_file():
        return Selected(path=Path(patterns[0]), note=None)
    patterns = tuple(pattern for pattern in patterns if not _is_beside(pattern)) or patterns
    matches = _one_a_run(path for pattern in patterns for path in _resolved(pattern))
    newest = max(matches, key=lambda path: (path.stat().st_mtime_ns, path.name))
    note = None
    if len(matches) > 1:
        note = f"{' '.join(patterns)} matches {len(matches)} recordings; using the newest, {newest}"
    return Selected(path=newest, note=note)


def _is_beside(pattern: str) -> bool:
    """Return whether a file has a suffix that no recording gets: shells expand patterns to plots as well."""
    path = Path(pattern)
    return path.suffix not in RECORDING_SUFFIXES and path.is_file()


def _resolved(pattern: str) -> list[Path]:
    if Path(pattern).is_dir():
        return recordings_in(Path(pattern))
    paths = (Path(name) for name in glob.glob(pattern, recursive=True))
    matches = [path for path in paths if path.is_file() and path.suffix in RECORDING_SUFFIXES]
    if not matches:
        raise UsageError(
            "no such file, and no recording matches it as a pattern",
            place=pattern,
            next_step="Quote patterns so that gpuproof resolves them, not the shell",
        )
    return matches


def recordings_in(folder: Path) -> list[Path]:
    """List the recordings in a directory, each run once, sorted by name.

    Raises:
        UsageError: there are no recordings.
    """
    paths = (path for path in folder.rglob("gpu_stats_*") if path.suffix in RECORDING_SUFFIXES)
    recordings = sorted(_one_a_run(paths))
    if not recordings:
        raise UsageError(
            "contains no recording named gpu_stats_* (.jsonl, .json or .csv)",
            place=str(folder),
            next_step="Pass the recording's file, or a pattern for its name, e.g. 'DIR/*.jsonl'",
        )
    return recordings


def _one_a_run(paths: Iterable[Path]) -> list[Path]:
    """Replace derived files with their JSON Lines, and list each file once."""
    return list(dict.fromkeys(_source(path) for path in sorted(paths)))


def _source(path: Path) -> Path:
    stem = path.stem.removesuffix(MULTI_GPU_ENDING)
    source = path.with_name(f"{stem}.jsonl")
    return source if source.is_file() else path


def of_recording(recording: RecordingData) -> Provenance:
    """Return the provenance of a recording's readings."""
    header, began_s = recording.recording, recording.began_unix_s
    devices = [track.identity for track in recording.devices]
    models = Counter(device.name for device in devices if device.name)
    driver = together(device.static.get("driver_version") for device in devices)
    date = None if began_s is None else date_text(datetime.fromtimestamp(began_s, timezone.utc))
    command = shlex.join(header.command) if header.command else None
    return Provenance(
        facts=(
            Fact("date", date, "this format has no date"),
            Fact("host", header.host or None, "this format does not record the host"),
            Fact("device", device_text(models), "the file names no GPU" if devices else "no GPU was read"),
            Fact("driver", driver, "the recording has no driver version"),
            Fact("CUDA or ROCm", None, NO_FRAMEWORK),
            Fact("torch", None, NO_FRAMEWORK),
            Fact("gpuproof", header.gpuproof_version or None, f"imported from {recording.format}"),
        ),
        command=Fact("command", command, "a recording contains it only with --keep-command"),
    )


def side_by_side(a: Provenance, b: Provenance, *, command: str | None = None) -> Provenance:
    """Return the provenance of A and B, listing shared facts once; `command` repeats the comparison."""
    facts = zip((*a.facts, a.command, *a.details), (*b.facts, b.command, *b.details), strict=False)
    both = tuple(_both(*pair) for pair in facts)
    num = len(a.facts)
    return Provenance(facts=both[:num], command=Fact("command", command, UNTYPED), details=both[num:])


def _both(a: Fact, b: Fact) -> Fact:
    if a == b:
        return a
    texts = [f"{side} {fact.text or f'not known: {fact.missing}'}" for side, fact in (("A", a), ("B", b))]
    return Fact(" or ".join(dict.fromkeys((a.name, b.name))), "; ".join(texts))


def device_text(models: Mapping[str, int]) -> str | None:
    """List device models with the number of each; None if there are no devices."""
    return ", ".join(f"{num} × {name}" if num > 1 else name for name, num in models.items()) or None


def together(values: Iterable[Any]) -> str | None:
    """List the distinct values; None if there are none."""
    return ", ".join(dict.fromkeys(str(value) for value in values if value)) or None


def date_text(when: datetime) -> str:
    """Format a date with its time zone."""
    return f"{when:%Y-%m-%d %H:%M} {when.tzname() or '(no zone was recorded)'}"
