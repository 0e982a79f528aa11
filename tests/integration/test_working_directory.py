"""Modules that lie in the working directory are imported by no process of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuproof.processes.start import safe_environment, start_process

NAMES = ("random", "json", "socket", "psutil", "logging", "torch", "runpy", "pkgutil", "gpuproof")
GPUPROOF = str(Path(sys.executable).with_name("gpuproof"))


@pytest.fixture
def hostile_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(
            f"open({str(tmp_path / name)!r}, 'w').close()\nraise ImportError\n"
        )
    return folder


@pytest.mark.parametrize("command", [["doctor"], ["init", "--output", "-"]])
def test_looking_at_this_machine_runs_no_code_of_the_folder(command: list[str], hostile_folder: Path) -> None:
    done = subprocess.run([GPUPROOF, *command], cwd=hostile_folder, capture_output=True, text=True)
    assert "ImportError" not in done.stderr
    assert sorted(path.name for path in hostile_folder.parent.iterdir()) == ["here"]


def test_a_process_of_ours_has_a_safe_path(hostile_folder: Path) -> None:
    assert safe_environment({"A": "1", "PYTHONSAFEPATH": ""}) == {"A": "1", "PYTHONSAFEPATH": "1"}
    command = ["sh", "-c", f'cd "{hostile_folder}" && exec "{sys.executable}" -m random']
    process = start_process(command, environment=dict(os.environ))
    assert process.wait() == 0
    assert not (hostile_folder.parent / "random").exists()


def test_the_module_imports_no_library_of_the_folder(tmp_path: Path) -> None:
    for name in ("click", "rich", "pydantic", "numpy"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} of the folder')\n")
    words = [sys.executable, "-X", "utf8", "-m", "gpuproof", "config", "show", "quick"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_gate_runs_no_gpuproof_of_the_folder(hostile_folder: Path) -> None:
    (hostile_folder / "gpuproof.py").unlink()
    (hostile_folder / "gpuproof").mkdir()
    (hostile_folder / "gpuproof" / "__init__.py").write_text("")
    (hostile_folder / "gpuproof" / "__main__.py").write_text("print('gpuproof: READY')\n")
    words = [GPUPROOF, "init", "prolog", "--for", "slurm-prolog", "--", "--mode=nccl"]
    script = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    done = subprocess.run(["sh", "-c", script], cwd=hostile_folder, capture_output=True, text=True)
    assert done.stdout.startswith("gpuproof: could not judge: ")
    assert sorted(path.name for path in hostile_folder.parent.iterdir()) == ["here"]
