"""`gpuproof scale` as people type it: what each published example plans on a machine of two GPUs."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpuproof.base.errors import UsageError
from gpuproof.cli.main import cli

TWO_GPUS = {"devices": [{"index": 0, "name": "a GPU"}, {"index": 1, "name": "a GPU"}]}
DOCS = (Path(__file__).parents[2] / "docs" / "guides" / "scale.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def on_two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(*_given: Any, **_options: Any) -> dict[str, Any]:
        return TWO_GPUS

    monkeypatch.setattr("gpuproof.launchers.probe.probe", probe)
    monkeypatch.chdir(tmp_path)


def planned(words: str) -> tuple[Result, Counter[int]]:
    """Return what `--dry-run` answers, and how many launches have so many ranks."""
    result = CliRunner().invoke(cli, ["scale", *shlex.split(words), "--dry-run", "--verbose"])
    lines = [line for line in result.stdout.splitlines() if "gpuproof.worker run" in line]
    return result, Counter(2 if "--nproc-per-node=2" in line else 1 for line in lines)


@pytest.mark.parametrize(
    ("words", "launches", "decision"),
    [
        ("--model medium --gpu-mode auto", {1: 4 * 50}, "no - Model too small (54,403 params)"),
        # strong and weak on two devices, for each launch on one
        ("--model large --gpu-mode auto --runs 25", {1: 4 * 25, 2: 8 * 25}, "evaluate - Medium model may"),
        ("--model medium --batch-sizes 32 64 128 --runs 20", {1: 3 * 20, 2: 6 * 20}, "no - Model too small"),
        ("--model medium --gpu-mode multi --runs 50", {1: 4 * 50, 2: 8 * 50}, None),
        ("--model large --runs 10 --output-dir ./quick_test", {1: 4 * 10, 2: 8 * 10}, "evaluate - Medium"),
        ("--model medium --batch-sizes 64 128 256 --runs 30", {1: 3 * 30, 2: 6 * 30}, "no - Model too small"),
    ],
)
@pytest.mark.promise("S2.16", "S2.20", "S2.22", "S2.25", "S2.28")
def test_each_published_example_as_it_is_typed(
    words: str, launches: dict[int, int], decision: str | None
) -> None:
    result, found = planned(words)
    assert result.exit_code == 0, result.output
    assert found == launches
    assert "Found 2 GPU(s)" in result.stderr
    assert ("Intelligent Strategy Decision" in result.stderr) == (decision is not None)
    assert decision is None or f"Intelligent Strategy Decision: {decision}" in result.stderr
    assert f"gpuproof scale {words}" in DOCS


def test_copies_of_a_resumed_study_are_tried_before_it_goes_on() -> None:
    Path("taken").write_text("a file where a folder is wanted")
    words = ["scale", "--resume", "absent", "--output-dir", "taken/below"]
    refused = CliRunner().invoke(cli, words).exception
    assert isinstance(refused, UsageError)
    assert str(refused).startswith("--output-dir taken/below: cannot be written: Not a directory")


def test_the_folder_of_the_recipe_holds_unless_another_is_named() -> None:
    words = "--batch-sizes 8 --runs 1 --gpu-mode single"
    assert " results/scale/RUN_ID" in planned(words)[0].stdout
    assert " elsewhere/scale/RUN_ID" in planned(f"{words} --run.save_dir=elsewhere")[0].stdout
    assert " out/scale/RUN_ID" in planned(f"{words} --output-dir out")[0].stdout


def test_the_forecast_counts_every_launch() -> None:
    result, launches = planned("--model medium --gpu-mode multi --runs 50")
    assert launches.total() == 600
    assert "; 600 launches of 110 steps each" in result.stderr


def test_a_dry_validation_says_how_many_launches_follow() -> None:
    words = ["validate", "--allow-cpu", "--recipe", "quick", "--nproc", "2", "--dry-run", "--verbose"]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output
    shown = result.stdout.count("gpuproof.worker run")
    later = re.search(r"^(\d+) more launches follow once these have finished\.$", result.stderr, re.MULTILINE)
    assert later is not None
    assert f" for {shown + int(later[1])} launches" in result.stderr
