"""The notebook over recorded runs, executed as Jupyter does; and the one line that installs all it needs."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from replay.exports import RECORDED, conclude_run
from running import clean_environment

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "notebooks" / "analysis.ipynb"


def cells_of(notebook: Path) -> list[dict[str, Any]]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Execute it beside two recorded runs of one recipe, at one rank and at two; return its cells of code."""
    folder = tmp_path_factory.mktemp("a user's checkout")
    for kind in ("one_rank", "two_ranks"):
        shutil.copytree(RECORDED / kind / "run", folder / "results" / "medium" / kind)
        conclude_run(folder / "results" / "medium" / kind)
    (folder / "notebooks").mkdir()
    shutil.copy(NOTEBOOK, folder / "notebooks")
    done = subprocess.run(
        [sys.executable, "-m", "jupyter", "execute", "--startup_timeout=600", "--inplace", NOTEBOOK.name],
        cwd=folder / "notebooks",
        env=clean_environment(MPLCONFIGDIR=str(folder), IPYTHONDIR=str(folder)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return cells_of(folder / "notebooks" / NOTEBOOK.name)


def text_of(cells: list[dict[str, Any]]) -> str:
    return "".join("".join(output.get("text", "")) for cell in cells for output in cell["outputs"])


@pytest.mark.promise("S1.15", "S1.24")
def test_it_draws_throughput_efficiency_time_and_step_times(executed: list[dict[str, Any]]) -> None:
    pictures = [
        output["data"]["image/png"]
        for cell in executed
        for output in cell["outputs"]
        if "image/png" in output.get("data", {})
    ]
    assert len(pictures) == 4
    assert all(len(picture) > 5_000 for picture in pictures)


def test_its_figures_are_those_of_the_runs(executed: list[dict[str, Any]]) -> None:
    rates = {}
    for ranks, kind in ((1, "one_rank"), (2, "two_ranks")):
        summary = json.loads((RECORDED / kind / "exports" / "run_summary.json").read_text(encoding="utf-8"))
        rates[ranks] = summary["throughput_samples_per_s"]
    text = text_of(executed)
    assert str(sorted(rates.items())) in text
    assert f"{{1: '100.0%', 2: '{rates[2] / (2 * rates[1]):.1%}'}}" in text


def test_it_uses_the_public_api_alone_and_is_kept_without_output() -> None:
    cells = cells_of(NOTEBOOK)
    nodes = [node for cell in cells for node in ast.walk(ast.parse("".join(cell["source"])))]
    imported = {node.names[0].name for node in nodes if isinstance(node, ast.Import)}
    imported |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name for name in imported if name.startswith("gpuproof")} == {"gpuproof"}
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells)


@pytest.mark.promise("S1.16", "S1.22")
def test_the_install_line_resolves_to_pinned_versions(tmp_path: Path) -> None:
    """All but fetching them: pip reads the file, builds our metadata, and finds each version installed."""
    for name in ("pyproject.toml", "README.md", "LICENSE", "requirements.txt", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    package = Path("src/gpuproof")
    for part in ("__init__.py", "py.typed"):
        (tmp_path / package).mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / package / part, tmp_path / package)
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--no-build-isolation"]
    done = subprocess.run([*pip, "-r", "requirements.txt"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("torch", "psutil", "numpy", "pydantic", "ipykernel", "matplotlib"):
        assert f"Requirement already satisfied: {name}" in done.stdout
    assert "Would install gpuproof" in done.stdout
