"""Which file does a name or a pattern mean? The newest match, and it is said which one was taken.

In: what a user typed, a path, a directory or a glob such as `results/gpu_stats_run1_*.json`. Out: one path,
and a sentence where the choice was not the only one possible.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpuproof.base.errors import UsageError

RECORDING_SUFFIXES = (".jsonl", ".json", ".csv")
"""What a pattern may mean: not the summaries and pictures that lie beside a recording."""

MULTI_GPU_ENDING = "_multi_gpu"
"""What gputop's second file of a run is called by, before the suffix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """The file that was taken, and what to tell the user about the choice."""

    path: Path
    note: str | None


def newest_match(*patterns: str) -> Selected:
    """Resolve paths, directories or globs to one file: the last modified, and of equals the last by name.

    Of a run's files it is the JSON Lines that the others were made from, where they are there; a path that
    is given alone is taken as it stands.

    Raises:
        UsageError: nothing matches one of them.
    """
    if len(patterns) == 1 and Path(patterns[0]).is_file():
        return Selected(path=Path(patterns[0]), note=None)
    matches = _one_a_run(path for pattern in patterns for path in _resolved(pattern))
    newest = max(matches, key=lambda path: (path.stat().st_mtime_ns, path.name))
    note = None
    if len(matches) > 1:
        note = f"{' '.join(patterns)} matches {len(matches)} recordings; took the newest, {newest}"
    return Selected(path=newest, note=note)


def _resolved(pattern: str) -> list[Path]:
    matches = recordings_in(Path(pattern)) if Path(pattern).is_dir() else _matches(pattern)
    if not matches:
        raise UsageError(
            "no such file, and no recording matches it as a pattern",
            place=pattern,
            next_step="Quote patterns, so that gpuproof and not the shell resolves them",
        )
    return matches


def _matches(pattern: str) -> list[Path]:
    paths = (Path(name) for name in glob.glob(pattern, recursive=True))
    return _one_a_run(path for path in paths if path.is_file() and path.suffix in RECORDING_SUFFIXES)


def recordings_in(folder: Path) -> list[Path]:
    """List the recordings under a directory, each run once, in order of their names.

    Raises:
        UsageError: there is none.
    """
    paths = (path for path in folder.rglob("gpu_stats_*") if path.suffix in RECORDING_SUFFIXES)
    recordings = sorted(_one_a_run(paths))
    if not recordings:
        raise UsageError(
            "holds no recording (gpu_stats_*.jsonl, .json or .csv)",
            place=str(folder),
            next_step="Name the folder or the file that `gpuproof monitor record` or `exec` wrote",
        )
    return recordings


def _one_a_run(paths: Iterable[Path]) -> list[Path]:
    """Put the JSON Lines in place of what was made from them, and name each file once."""
    return list(dict.fromkeys(_source(path) for path in sorted(paths)))


def _source(path: Path) -> Path:
    stem = path.stem.removesuffix(MULTI_GPU_ENDING)
    source = path.with_name(f"{stem}.jsonl")
    return source if source.is_file() else path
