"""Commands as a person would start them, in fresh processes, timed from outside.

In comes a command line; out goes how long it took on the monotonic clock, which is the same clock in every
process of this host, and what it printed. The benchmarks' own workloads are made visible to each.
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
    """One process from its start to its end."""

    begin_s: float
    end_s: float
    output: str

    @property
    def wall_s(self) -> float:
        """Seconds from before the start to after the end."""
        return self.end_s - self.begin_s


def python(*words: str) -> list[str]:
    """Return a command line of this same Python."""
    return [sys.executable, *words]


def gpuproof(*words: str) -> list[str]:
    """Return the command line of `gpuproof WORDS`."""
    return python("-m", "gpuproof", *words)


def timed(command: Sequence[str], *, cwd: Path | None = None) -> TimedCommand:
    """Run a command to its end.

    Raises:
        SystemExit: it failed; its standard error is the message.
    """
    environment = _environment()
    begin_s = monotonic()
    result = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    end_s = monotonic()
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with status {result.returncode}:\n{result.stderr}")
    return TimedCommand(begin_s=begin_s, end_s=end_s, output=result.stdout)


def _environment() -> dict[str, str]:
    """Return the environment without a launcher's variables, on one thread, with the plug-in on the path."""
    kept = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    path = os.pathsep.join(filter(None, [str(HERE / "plugin"), os.environ.get("PYTHONPATH")]))
    return {**kept, **ONE_THREAD, "PYTHONPATH": path}
