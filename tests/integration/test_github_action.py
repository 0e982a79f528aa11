"""The action of this repository: its step, run by bash as a runner does, fails a job for a regression."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from gpuproof.base.errors import ExitCode
from running import clean_environment, gpuproof

ROOT = Path(__file__).parents[2]
ACTION: dict[str, Any] = YAML(typ="safe").load(ROOT / "action.yml")
(STEP,) = ACTION["runs"]["steps"]
RECORDED = ROOT / "tests" / "replay" / "runs" / "training" / "run"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, and a copy of it under an awkward name."""
    folder = tmp_path_factory.mktemp("action")
    shutil.copytree(RECORDED, folder / "before")
    assert gpuproof("report", "before", cwd=folder).returncode == ExitCode.DONE
    shutil.copytree(folder / "before", folder / "it's after")
    return folder


def run_step(place: Path, **inputs: str) -> tuple[int, str, dict[str, str]]:
    """Return how the step ended, what it wrote into the summary, and its outputs."""
    names = {f"inputs.{name}": declared.get("default", "") for name, declared in ACTION["inputs"].items()}
    names |= {f"inputs.{name.replace('_', '-')}": value for name, value in inputs.items()}
    command = place / "gpuproof"  # as pip installs it: Python may lie in a folder with a blank in its name
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gpuproof "$@"\n')
    command.chmod(0o755)
    names["inputs.command"] = str(command)
    variables = {name: filled(text, names) for name, text in STEP["env"].items()}
    files = {name: place / name for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
    for file in files.values():
        file.write_text("")
    paths = {name: str(file) for name, file in files.items()}
    environment = clean_environment(**variables, **paths, RUNNER_TEMP=str(place))
    ended = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEP["run"]],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
    )
    summary, outputs = (file.read_text(encoding="utf-8") for file in files.values())
    return ended.returncode, summary, dict(line.split("=", 1) for line in outputs.splitlines())


def filled(text: str, names: Mapping[str, str]) -> str:
    """Put the inputs into an expression of a workflow."""
    return re.sub(r"\$\{\{ (\S+) \}\}", lambda found: names[found[1]], text)


def test_what_cannot_be_told_fails_the_job_and_its_page_is_the_summary(place: Path) -> None:
    code, summary, outputs = run_step(place, baseline="before", candidate="it's after")
    assert code == ExitCode.INCONCLUSIVE
    assert summary.startswith("## gpuproof: cannot be told\n")
    assert "it's after against before" in summary
    assert outputs["exit-code"] == "4"
    assert outputs["verdict"] == "cannot be told"
    assert Path(outputs["report"]).read_text(encoding="utf-8") in summary


def test_it_may_be_let_pass_and_the_summary_says_so(place: Path) -> None:
    code, summary, outputs = run_step(place, baseline="before", candidate="it's after", inconclusive="pass")
    assert code == 0
    assert "let pass here" in summary
    assert outputs["exit-code"] == "4"


def test_a_run_that_is_not_there_fails_the_job_and_the_summary_has_the_reason(place: Path) -> None:
    code, summary, outputs = run_step(place, baseline="nowhere", candidate="before", inconclusive="pass")
    assert code == ExitCode.USAGE
    assert "nowhere" in summary
    assert outputs["verdict"] == "not compared"


@pytest.mark.parametrize(("ended", "verdict"), [(0, "no regression"), (3, "regression")])
def test_a_gates_answer_is_the_jobs(place: Path, ended: int, verdict: str) -> None:
    """With a stand-in for the command: which runs give which code is tested where compare is."""
    stand_in = place / "stand-in"
    stand_in.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > words\nexit {ended}\n')
    stand_in.chmod(0o755)
    step = STEP["run"].replace("$GPUPROOF compare", "./stand-in compare")
    files = {name: str(place / name) for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
    inputs = {"BASELINE": "a", "CANDIDATE": "b c", "MAX_REGRESSION": "1%", "ACROSS": "stack model.name"}
    other = {"BETWEEN_SESSIONS": "0.3%", "INCONCLUSIVE": "fail", "RUNNER_TEMP": str(place)}
    found = subprocess.run(["bash", "-c", step], cwd=place, env=clean_environment(**files, **inputs, **other))
    assert found.returncode == ended
    assert f"## gpuproof: {verdict}\n" in (place / "GITHUB_STEP_SUMMARY").read_text()
    words = (place / "words").read_text().splitlines()
    assert words[:5] == ["compare", "a", "b c", "--max-regression", "1%"]
    assert words[7:] == ["--across", "stack", "--across", "model.name", "--between-sessions", "0.3%"]


def test_every_input_is_documented_and_used() -> None:
    used = {found for text in STEP["env"].values() for found in re.findall(r"inputs\.([\w-]+)", text)}
    assert used == set(ACTION["inputs"])
    assert all(declared["description"] for declared in ACTION["inputs"].values())
