"""Output that is closed, full or read by nobody changes no exit code; nor does a read-only run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

GPUPROOF = str(Path(sys.executable).with_name("gpuproof"))
FAILED = Path(__file__).parents[1] / "replay" / "runs" / "failed" / "run"
LOST = (">&-", "2>&-", ">&- 2>&-", ">/dev/full", "2>/dev/full", ">/dev/full 2>&1", "| true", "<&- >&- 2>&-")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(FAILED, tmp_path_factory.mktemp("lost") / "run"))


@pytest.mark.parametrize("lost", LOST)
def test_the_exit_code_is_the_commands_own(lost: str, run: Path) -> None:
    script = f'"$0" report "$1" {lost}; exit ${{PIPESTATUS[0]}}'
    assert subprocess.run(["bash", "-c", script, GPUPROOF, str(run)]).returncode == 3


def test_lost_output_is_said_where_it_can_be(run: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([GPUPROOF, "report", str(run)], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (
        3,
        "gpuproof: standard output: cannot be written: No space left on device.\n",
    )


def test_a_report_of_a_run_that_cannot_be_written_is_printed(tmp_path: Path) -> None:
    run = Path(shutil.copytree(FAILED, tmp_path / "run"))
    (run / "result.json" / "in the way").mkdir(parents=True)
    done = subprocess.run([GPUPROOF, "report", str(run)], capture_output=True, text=True)
    assert done.returncode == 3
    assert "cannot be written" in done.stderr
    assert "None of the run's files were regenerated" in done.stderr
    assert "What failed" in done.stdout
