"""What a command wrote: files to keep, and its own figures. Files from before it began are none of its."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuproof.records.work.command import CollectedFiles, CommandMetrics
from gpuproof.records.work.metrics_file import MAX_BYTES, read_metrics

CLOCK_STEP_S = 0.02
"""By how much a file system's clock may be behind ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where a command's files may lie."""

    output: Path
    """The launch's own folder."""
    working: Path
    since_s: float
    """When the launch began, in seconds of the wall clock."""

    def find(self, pattern: str) -> Iterator[Path]:
        """Yield the files that match, of the first place that has any: written by this launch alone."""
        for place in (self.output, self.working):
            paths = [path for path in sorted(place.glob(pattern)) if path.is_file()]
            fresh = [path for path in paths if path.stat().st_mtime >= self.since_s - CLOCK_STEP_S]
            if fresh:
                yield from fresh
                return

    def is_stale(self, pattern: str) -> bool:
        """Say whether files match that are older than the launch."""
        return any(path.is_file() for path in self.working.glob(pattern))


def collect(patterns: Sequence[str], places: Places, *, rank: int) -> CollectedFiles:
    """Copy files of the working folder that match into the launch's own; those that lie there are kept."""
    files: list[str] = []
    missing: list[str] = []
    for pattern in patterns:
        paths = list(places.find(pattern))
        if not paths:
            missing.append(f"{pattern} (older than the launch)" if places.is_stale(pattern) else pattern)
        files += [_stored(path, places) for path in paths]
    return CollectedFiles(rank=rank, files=tuple(files), missing=tuple(missing))


def _stored(path: Path, places: Places) -> str:
    """Return a file's name in the launch's own folder, where it is put if it is not there."""
    if path.is_relative_to(places.output):
        return str(path.relative_to(places.output))
    name = path.relative_to(places.working)
    (places.output / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, places.output / name)
    return str(name)


def read_metrics_file(name: str, places: Places, *, rank: int) -> CommandMetrics:
    """Read the command's own figures; why there are none is said in the record."""
    path = next(places.find(name), None)
    if path is None:
        old = "only one from before this launch" if places.is_stale(name) else "none was written"
        return _without(name, f"no {name}: {old}", rank=rank)
    try:
        if path.stat().st_size > MAX_BYTES:
            return _without(name, f"{path}: larger than {MAX_BYTES >> 20} MiB", rank=rank)
        metrics = read_metrics(path.read_text(encoding="utf-8", errors="replace"), name=path.name)
    except (OSError, ValueError) as error:
        return _without(name, f"{path}: {error}", rank=rank)
    return CommandMetrics(
        rank=rank, file=str(path), values=metrics.values, series=metrics.series, missing=None
    )


def _without(name: str, reason: str, *, rank: int) -> CommandMetrics:
    return CommandMetrics(rank=rank, file=name, values={}, series={}, missing=reason)
