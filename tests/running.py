"""Running the real command in tests, as a subprocess, and reading what it left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from gpuproof.base.errors import ExitCode
from gpuproof.records.collected import CaseRecords
from gpuproof.store.run import RunDirectory

LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TIMEOUT_S = 1800
MEASURED = (ExitCode.DONE, ExitCode.INCONCLUSIVE)
"""A window of a few short steps may be judged INVALID; here its records matter, not its figures."""

GAP = "of the window is outside all steps"

TINY = (
    "--model.name=medium",
    "--data.name=synthetic",
    "--data.batch_size=8",
    "--benchmark.warmup_steps=2",
    "--benchmark.measure_by=steps",
    "--benchmark.measure_steps=20",
    "--run.repeats=1",
)
"""Over the quick recipe: a run that takes as long as importing torch does."""
LIGHT = ("--kind=inference", "--benchmark.count_flops=false")
"""Of launches whose work is not what is tested: an optimizer, and counting, import torch's compiler, too."""


def clean_environment(**variables: str) -> dict[str, str]:
    """Return this process's environment without a launcher's variables, with `variables` added."""
    kept = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    return {**kept, **variables}


def gpuproof_command(*words: str) -> list[str]:
    """Return the command line of `gpuproof WORDS`."""
    return [sys.executable, "-m", "gpuproof", *words]


def gpuproof(
    *words: str, cwd: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `gpuproof WORDS` to its end."""
    return subprocess.run(
        gpuproof_command(*words),
        cwd=cwd,
        env=clean_environment() if environment is None else environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def run_directory(cwd: Path, run_id: str, experiment: str = "quick") -> RunDirectory:
    """Open a run that a command in `cwd` made."""
    return RunDirectory.open(cwd / "results" / experiment / run_id)


def only_case(run: RunDirectory) -> CaseRecords:
    """Return the records of a run's single launch."""
    (records,) = run.cases()
    return records


def run_tests(*tests: Path, environment: Mapping[str, str], cwd: Path) -> str:
    """Run the tests of an example in a pytest of its own, without our settings; they must pass."""
    alone = ("-q", "-p", "no:cacheprovider", "--rootdir=/", "-c", os.devnull)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *alone, *map(str, tests)],
        env={name: value for name, value in environment.items() if name != "PYTEST_ADDOPTS"},
        capture_output=True,
        text=True,
        cwd=cwd,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def assert_measured(ended: subprocess.CompletedProcess[str]) -> None:
    """All that was planned was measured; a busy machine may leave a process out between two steps."""
    told = " ".join((ended.stdout + ended.stderr).split())
    if ended.returncode != ExitCode.DONE:
        assert ended.returncode == ExitCode.INCONCLUSIVE, told
        assert GAP in told
        assert "launches were measured" not in told  # it says so of fewer than were planned
