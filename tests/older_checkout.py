"""A checkout as users of the older tools have it, and what they type there, in a shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from documented_place import write_tiny_cifar100
from running import TIMEOUT_S, clean_environment

ROOT = Path(__file__).resolve().parents[1]
FILES = (
    "gpu_loadtest.py",
    "run_benchmark.py",
    "cli.py",
    "Makefile",
    "pyproject.toml",
    "constraints.txt",
    "src/train.py",
)
FOLDERS = ("scripts", "configs", "containers", "examples/matrix")
NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}


def make_checkout(folder: Path) -> Path:
    """Copy what users start, with forty pictures as CIFAR-100 and a `.venv` that make takes for ready."""
    (folder / "src").mkdir(parents=True)
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    write_tiny_cifar100(folder / "data" / "cifar-100-python")
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, words in (("gpuproof", "-m gpuproof"), ("pip", "-c 'raise SystemExit(9)'")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (programs / name).chmod(0o755)
    (folder / ".venv" / "run-ready").touch()
    return folder


def typed(line: str, folder: Path, variables: Mapping[str, str] = NO_GPU) -> subprocess.CompletedProcess[str]:
    """Run a line as a shell in the checkout does; `python`, `torchrun` and others are those of the tests."""
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    return subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env=clean_environment(**{**NO_GPU, "PATH": path, **variables}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
