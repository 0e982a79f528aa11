"""Plug-ins as packages: the examples installed as anyone would, and packages that are broken in every way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

from running import MEASURED, TINY, clean_environment, gpuproof, run_tests

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both examples, installed into a folder of their own."""
    place = tmp_path_factory.mktemp("plug-ins")
    sources = place / "sources"  # a build writes beside its sources
    copytree(EXAMPLES, sources, ignore=ignore_patterns("*.egg-info", "build", "__pycache__"))
    target = place / "site"
    packages = [str(sources / name) for name in ("workload_plugin", "check_plugin")]
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    made = subprocess.run([*pip, f"--target={target}", *packages], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return target


def with_path(*folders: Path) -> dict[str, str]:
    return clean_environment(PYTHONPATH=os.pathsep.join([*map(str, folders), str(ROOT / "src")]))


def package(
    folder: Path,
    name: str,
    entries: Mapping[str, Mapping[str, str]],
    modules: Mapping[str, str] | None = None,
) -> Path:
    """Lay a package down as an installer leaves it."""
    info = folder / f"{name.replace('-', '_')}-2.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.0\n")
    sections = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in points.items())
        for group, points in entries.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(sections))
    for module, text in (modules or {}).items():
        (folder / f"{module}.py").write_text(text)
    return folder


def states(
    environment: Mapping[str, str], *words: str, cwd: Path, code: int
) -> dict[tuple[str, str], dict[str, str]]:
    result = gpuproof("plugins", "--json", *words, cwd=cwd, environment=environment)
    assert result.returncode == code, result.stderr
    return {(item["name"], item["distribution"]): item for item in json.loads(result.stdout)}


def test_the_examples_are_listed_and_run(installed: Path, tmp_path: Path) -> None:
    environment = with_path(installed)
    found = states(environment, "--load", cwd=tmp_path, code=0)
    assert found["perceptron", "gpuproof-example-workload"]["state"] == "loads"
    assert found["steady", "gpuproof-example-check"] | {"summary": ""} == {
        "kind": "check",
        "name": "steady",
        "distribution": "gpuproof-example-check",
        "version": "1.0",
        "state": "loads",
        "reason": None,
        "summary": "",
    }
    words = ("--model.name=perceptron", "--model.options.hidden=8", "--data.image_size=8", "--run.run_id=p")
    run = gpuproof("run", "quick", *TINY, *words, "--json", cwd=tmp_path, environment=environment)
    assert run.returncode in MEASURED, run.stderr
    judged = gpuproof(
        "report", "results/quick/p", "--check", "steady", "--json", cwd=tmp_path, environment=environment
    )
    (check,) = json.loads(judged.stdout)["checks"]
    assert check["name"] == "steady"
    assert (check["outcome"]["status"], judged.returncode) in (("PASS", 0), ("FAIL", 3))
    assert check["outcome"]["expected"] == "10% or less"


def test_the_examples_own_tests_pass(installed: Path) -> None:
    tests = [EXAMPLES / name / "tests" for name in ("workload_plugin", "check_plugin")]
    assert "3 passed" in run_tests(*tests, environment=with_path(installed), cwd=installed)


@pytest.fixture
def broken(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "broken"
    package(
        folder,
        "raises-at-import",
        {"gpuproof.workloads": {"boom": "boom:INFO"}, "gpuproof.checks": {"leaves": "leaves:CHECK"}},
        {"boom": "raise ValueError('no such driver')", "leaves": "raise SystemExit(7)"},
    )
    package(folder, "half-installed", {"gpuproof.workloads": {"gone": "a_module_that_is_not_there:INFO"}})
    package(
        folder,
        "not-a-plugin",
        {
            "gpuproof.workloads": {"odd": "json:loads"},
            "gpuproof.checks": {"odd_check": "json:loads"},
            "gpuproof.suites": {"odd_suite": "json:loads"},
        },
    )
    package(folder, "first-owner", {"gpuproof.workloads": {"twice": "json:loads"}})
    package(folder, "second-owner", {"gpuproof.workloads": {"twice": "json:dumps"}})
    return with_path(folder)


def test_a_broken_package_hides_no_other(broken: dict[str, str], tmp_path: Path) -> None:
    unloaded = states(broken, cwd=tmp_path, code=0)
    assert unloaded["boom", "raises-at-import"]["state"] == "not loaded"
    assert unloaded["twice", "first-owner"]["state"] == "duplicate"
    loaded = states(broken, "--load", cwd=tmp_path, code=5)
    reasons = {name: item["reason"] for (name, _), item in loaded.items() if item["state"] != "loads"}
    assert set(reasons) == {"boom", "leaves", "gone", "odd", "odd_check", "odd_suite", "twice"}
    assert "'boom' from raises-at-import cannot be loaded: ValueError: no such driver" in reasons["boom"]
    assert "'leaves' from raises-at-import cannot be loaded: SystemExit" in reasons["leaves"]
    assert "'gone' from half-installed cannot be loaded: ModuleNotFoundError" in reasons["gone"]
    assert "'odd' from not-a-plugin is a function, not a WorkloadInfo" in reasons["odd"]
    assert "without name, summary and judge" in reasons["odd_check"]
    assert "registered as a suite, but is a function that lacks a required part" in reasons["odd_suite"]
    assert reasons["twice"] == "registered by first-owner and second-owner: uninstall one of them"
    assert loaded["resnet18", "gpuproof"]["state"] == "loads"
    listed = gpuproof("plugins", cwd=tmp_path, environment=broken)
    assert listed.returncode == 0
    assert "resnet18" in listed.stdout
    assert listed.stderr == ""


def test_one_plugin_by_name(broken: dict[str, str], tmp_path: Path) -> None:
    assert list(states(broken, "resnet18", cwd=tmp_path, code=0)) == [("resnet18", "gpuproof")]
    states(broken, "gone", cwd=tmp_path, code=5)
    unknown = gpuproof("plugins", "nobody", cwd=tmp_path, environment=broken)
    assert unknown.returncode == 2
    assert "there is no plug-in called 'nobody'" in unknown.stderr


def test_a_run_beside_broken_packages_works_and_names_the_broken_one(
    broken: dict[str, str], tmp_path: Path
) -> None:
    good = gpuproof("run", "quick", *TINY, "--dry-run", cwd=tmp_path, environment=broken)
    assert good.returncode == 0, good.stderr
    bad = gpuproof("run", "quick", *TINY, "--model.name=gone", cwd=tmp_path, environment=broken)
    assert bad.returncode == 2
    assert "'gone' from half-installed cannot be loaded" in bad.stderr
