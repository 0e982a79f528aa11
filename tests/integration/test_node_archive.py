"""The node side in one file, on a Python that has nothing but its standard library, is a whole monitor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuproof.launchers.archive import build_archive
from gpuproof.readings.recording import load_recording


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return build_archive(tmp_path / "a node's file.pyz")


@pytest.mark.promise("S4.5")
def test_the_archive_alone_records_a_command(archive: Path, tmp_path: Path) -> None:
    bare_python = str(sys._base_executable)  # type: ignore[attr-defined]  # of the environment's Python
    out = tmp_path / "r.jsonl"
    work = """echo '{"phase": "train"}' >&$GPUPROOF_MARKS_FD; sleep 0.3; exit 6"""
    done = subprocess.run(
        [bare_python, str(archive), "record", "--interval=0.1", f"--out={out}", "--", "sh", "-c", work],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "GPUPROOF_FAKE_DEVICES": "1", "PYTHONNOUSERSITE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 6, done.stderr
    assert done.stderr == f"gpuproof: readings are in {out}\n"
    data = load_recording(out)
    assert data.end is not None
    assert data.end.exit_code == 6
    assert len(data.time_s) >= 3
    assert [phase.name for phase in data.phases()] == ["train"]
    assert data.host["mem_used_bytes"][0] > 0
