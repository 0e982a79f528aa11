"""A node needs Python and torch: the worker runs with every other installed package out of reach."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import pytest

from gpuproof.launchers.archive import build_archive
from gpuproof.records.run import RankResult
from gpuproof.store.run import RunDirectory

BLOCKER = """
from importlib.machinery import PathFinder

find_spec = PathFinder.find_spec

def find_allowed_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in {blocked!r} else find_spec(name, path, target)

PathFinder.find_spec = find_allowed_spec
"""


def requirements_of(package: str) -> set[str]:
    """Return the package and all that it needs, as distribution names."""
    found: set[str] = set()
    pending = [package]
    while pending:
        name = re.sub(r"[-_.]+", "-", pending.pop()).lower()
        if name in found:
            continue
        try:
            needs = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        found.add(name)
        pending += [re.split(r"[ ;<>=!~\[(]", need)[0] for need in needs if "extra ==" not in need]
    return found


@pytest.fixture
def torch_only(tmp_path: Path) -> dict[str, str]:
    """Return variables under which this Python imports the standard library and torch's own needs only."""
    allowed = requirements_of("torch")
    blocked = {
        module
        for module, names in packages_distributions().items()
        if not allowed & {re.sub(r"[-_.]+", "-", name).lower() for name in names}
    }
    assert {"click", "pydantic", "psutil", "numpy", "gpuproof"} <= blocked
    assert "torch" not in blocked
    folder = tmp_path / "blocker"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(BLOCKER.format(blocked=sorted(blocked - {"gpuproof"})))
    return {"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"}


@pytest.mark.parametrize("loading", ["device", "loader"])
def test_a_run_works_with_the_archive_and_a_python_that_has_only_torch(
    loading: str, torch_only: dict[str, str], tmp_path: Path
) -> None:
    archive = build_archive(tmp_path / "gpuproof-node.pyz")
    listed = subprocess.run(
        [sys.executable, str(archive), "probe"], env=torch_only, capture_output=True, text=True
    )
    assert listed.returncode == 0, listed.stderr
    wrapper = tmp_path / "python with torch only"
    wrapper.write_text(
        f'#!/bin/sh\nPYTHONPATH="{torch_only["PYTHONPATH"]}" exec "{sys.executable}" -W ignore "$@"\n'
    )
    wrapper.chmod(0o755)
    result = subprocess.run(
        [
            *(sys.executable, "-m", "gpuproof", "run", "quick", "--python", str(wrapper)),
            *("--run.repeats=1", "--run.run_id=one", f"--run.save_dir={tmp_path / 'results'}"),
            *("--benchmark.measure_by=steps", "--benchmark.measure_steps=2", "--benchmark.warmup_steps=1"),
            *("--data.batch_size=4", "--data.image_size=16"),
            *(f"--data.loading={loading}", "--data.num_workers=2"),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    (records,) = RunDirectory.open(tmp_path / "results" / "quick" / "one").cases()
    assert [type(record) for record in records.records][-1] is RankResult


def test_two_archives_of_one_version_are_the_same(tmp_path: Path) -> None:
    first, second = build_archive(tmp_path / "a.pyz"), build_archive(tmp_path / "b.pyz")
    assert first.read_bytes() == second.read_bytes()
