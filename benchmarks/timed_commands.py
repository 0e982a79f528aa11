"""Commands as a person would start them, in fresh processes, timed externally.

Input: a command line. Output: how long it took on the monotonic clock, which is the same clock in every
process of this host, and what it printed. Each command can see the benchmarks' own workloads.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

HERE = Path(__file__).resolve().parent
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCommand:
    """One process from start to exit."""

    begin_s: float
    end_s: float
    output: str

    @property
    def wall_s(self) -> float:
        """Seconds from before the start to after the exit."""
        return self.end_s - self.begin_s


def python(*words: str) -> list[str]:
    """Return a command line for the running Python."""
    return [sys.executable, *words]


def gpuproof(*words: str) -> list[str]:
    """Return the command line of `gpuproof WORDS`."""
    return python("-m", "gpuproof", *words)


def timed(command: Sequence[str], *, cwd: Path | None = None) -> TimedCommand:
    """Run a command to completion.

    Raises:
        SystemExit: the command failed; its standard error is the message.
    """
    environment = _environment()
    begin_s = monotonic()
    result = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    end_s = monotonic()
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)} exited with status {result.returncode}:\n{result.stderr}")
    return TimedCommand(begin_s=begin_s, end_s=end_s, output=result.stdout)


def _environment() -> dict[str, str]:
    """Return the environment without launcher variables, with one thread and the plug-in on the path."""
    kept = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    path = os.pathsep.join(filter(None, [str(HERE / "plugin"), os.environ.get("PYTHONPATH")]))
    return {**kept, **ONE_THREAD, "PYTHONPATH": path}
