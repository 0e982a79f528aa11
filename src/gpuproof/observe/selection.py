"""Which file does a name or a pattern mean? The newest match, and it is said which one was taken.

In: what a user typed, a path or a glob such as `results/gpu_stats_run1_*.json`. Out: one path, and a
sentence where the choice was not the only one possible.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpuproof.errors import UsageError

RECORDING_SUFFIXES = (".jsonl", ".json", ".csv")
"""What a pattern may mean: not the summaries and pictures that lie beside a recording."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """The file that was taken, and what to tell the user about the choice."""

    path: Path
    note: str | None


def newest_match(pattern: str) -> Selected:
    """Resolve a path or a glob to one file: the last modified, and of equals the last by name.

    Raises:
        UsageError: nothing matches.
    """
    if Path(pattern).is_file():
        return Selected(path=Path(pattern), note=None)
    found = (Path(name) for name in glob.glob(pattern, recursive=True))
    matches = _one_a_run(path for path in found if path.is_file() and path.suffix in RECORDING_SUFFIXES)
    if not matches:
        raise UsageError(
            "no such file, and no recording matches it as a pattern",
            place=pattern,
            next_step="Quote patterns, so that gpuproof and not the shell resolves them",
        )
    newest = max(matches, key=lambda path: (path.stat().st_mtime_ns, path.name))
    note = None
    if len(matches) > 1:
        note = f"{pattern} matches {len(matches)} files; took the newest, {newest}"
    return Selected(path=newest, note=note)


def recordings_in(folder: Path) -> list[Path]:
    """List the recordings under a directory, each run once, in order of their names.

    Raises:
        UsageError: there is none.
    """
    found = (path for path in folder.rglob("gpu_stats_*") if path.suffix in RECORDING_SUFFIXES)
    recordings = sorted(_one_a_run(found))
    if not recordings:
        raise UsageError("holds no recording (gpu_stats_*.jsonl, .json or .csv)", place=str(folder))
    return recordings


def _one_a_run(paths: Iterable[Path]) -> list[Path]:
    """Of files that differ in their suffix only, keep the JSON Lines that the others were made from."""
    by_stem: dict[Path, Path] = {}
    for path in sorted(paths, key=lambda path: RECORDING_SUFFIXES.index(path.suffix)):
        by_stem.setdefault(path.with_suffix(""), path)
    return list(by_stem.values())
