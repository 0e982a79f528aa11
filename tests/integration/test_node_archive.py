"""The node side in one file, on a Python that has nothing but its standard library, is a whole monitor."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import gpuproof
from gpuproof.observe.recording import load_recording

NODE_SIDE = ("records", "devices", "monitor", "worker")
SHARED = ("__init__.py", "errors.py", "units.py", "foreground.py", "own_process.py", "registry.py")
MAIN = "import sys\nfrom gpuproof.worker.record import main\nsys.exit(main(sys.argv[1:]))\n"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    package = Path(gpuproof.__file__).parent
    path = tmp_path / "a node's file.pyz"
    with zipfile.ZipFile(path, "w") as file:
        for name in SHARED:
            file.write(package / name, f"gpuproof/{name}")
        for name in NODE_SIDE:
            for source in (package / name).glob("*.py"):
                file.write(source, f"gpuproof/{name}/{source.name}")
        file.writestr("__main__.py", MAIN)
    return path


def test_the_archive_alone_records_a_command(archive: Path, tmp_path: Path) -> None:
    bare_python = str(sys._base_executable)  # type: ignore[attr-defined]  # of the environment's Python
    out = tmp_path / "r.jsonl"
    work = """echo '{"phase": "train"}' >&$GPUPROOF_MARKS_FD; sleep 0.3; exit 6"""
    done = subprocess.run(
        [bare_python, str(archive), "--interval=0.1", f"--out={out}", "--", "sh", "-c", work],
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
