"""Slurm's commands as scripts that print what a test writes down for them, and note how they were called."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

NAMES = ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo", "sacct")
SCRIPT = """#!/bin/sh
name=$(basename "$0")
cd "$(dirname "$0")/.."
echo "$name $*" >> calls
[ "$name" = sbatch ] && cat > "script-$(grep -c sbatch calls)"
if [ -e "$name.err" ]; then cat "$name.err" >&2; exit 1; fi
if [ -e "$name.out" ]; then cat "$name.out"; fi
"""


@dataclass(frozen=True, kw_only=True)
class FakeSlurm:
    """A folder with the commands."""

    folder: Path

    @property
    def environment(self) -> Mapping[str, str]:
        """What makes them be found before any others."""
        return {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}

    def says(self, name: str, text: str) -> None:
        """Have a command print this from now on; no text has it print nothing."""
        self._put(f"{name}.out", text)

    def fails(self, name: str, text: str | None) -> None:
        """Have a command fail with these words, or None: no more."""
        if text is None:
            (self.folder / f"{name}.err").unlink(missing_ok=True)
        else:
            self._put(f"{name}.err", text)

    def _put(self, name: str, text: str) -> None:
        """Write a file whole: commands may be reading it."""
        aside = self.folder / f"{name}.part"
        aside.write_text(text)
        aside.rename(self.folder / name)

    def calls(self, name: str = "") -> list[str]:
        """Return the calls of a command, or all."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(name)]


def fake_slurm(folder: Path, *, without: tuple[str, ...] = ()) -> FakeSlurm:
    """Write the commands."""
    (folder / "bin").mkdir(parents=True)
    for name in set(NAMES) - set(without):
        path = folder / "bin" / name
        path.write_text(SCRIPT)
        path.chmod(0o755)
    fake = FakeSlurm(folder=folder)
    fake.says("sbatch", "7\n")
    return fake
