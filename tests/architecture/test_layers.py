"""The layers hold, and the check that says so can fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PLANTED = {
    "the control side never touches a device or the node side": (
        "cli/runs.py",
        "import gpuproof.worker.engine.loop",
    ),
    "the node side needs the standard library and torch only": ("worker/extra.py", "import numpy"),
    "the engine knows no monitor": ("worker/engine/loop.py", "import gpuproof.devices.base"),
    "comparison, launches and verdict are pure functions of records": ("launches/clock.py", "import time"),
    "control side: each layer uses only those below": ("launches/store.py", "import gpuproof.store.run"),
    "renderers draw pages and know no suite, store or config": (
        "report/axes.py",
        "import gpuproof.store.run",
    ),
    "of the renderers, rich is for the terminal alone": ("report/svg.py", "import rich"),
    "what only tests and benchmarks have, the package does not import": (
        "statistics/launches.py",
        "from scipy.special import stdtrit",
    ),
    "node side: each layer uses only those below": ("devices/up.py", "import gpuproof.worker.engine.loop"),
}


def lint_imports(checkout: Path) -> subprocess.CompletedProcess[str]:
    program = "import sys; sys.path.insert(0, 'src'); from importlinter.cli import lint_imports_command; "
    program += "lint_imports_command()"
    command = [sys.executable, "-c", program, "--no-cache"]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True)


def test_the_layers_hold() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("contract", PLANTED)
def test_a_planted_violation_fails_its_contract(contract: str, tmp_path: Path) -> None:
    shutil.copytree(
        ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__")
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    file, statement = PLANTED[contract]
    with (tmp_path / "src" / "gpuproof" / file).open("a") as source:
        source.write(f"\n{statement}\n")
    result = lint_imports(tmp_path)
    assert result.returncode == 1
    assert f"{contract} BROKEN" in result.stdout
