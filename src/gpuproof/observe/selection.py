"""Which file does a name or a pattern mean? The newest match, and it is said which one was taken.

In: what a user typed, a path or a glob such as `results/gpu_stats_run1_*.json`. Out: one path, and a
sentence where the choice was not the only one possible.
"""

from __future__ import annotations

import glob
from dataclasses import dataclass
from pathlib import Path

from gpuproof.errors import UsageError


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
    matches = [Path(name) for name in glob.glob(pattern, recursive=True) if Path(name).is_file()]
    if not matches:
        raise UsageError(
            "no such file, and no file matches it as a pattern",
            place=pattern,
            next_step="Quote patterns, so that gpuproof and not the shell resolves them",
        )
    newest = max(matches, key=lambda path: (path.stat().st_mtime_ns, path.name))
    note = None
    if len(matches) > 1:
        note = f"{pattern} matches {len(matches)} files; took the newest, {newest}"
    return Selected(path=newest, note=note)
