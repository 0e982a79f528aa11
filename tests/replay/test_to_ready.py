"""From nothing to READY: rules are written for what nothing judged, filled in, and close every cell.

`to_ready/` is what `gpuproof validate --device simgpu --recipe quick --model medium --batch-size 8` wrote on
two simulated devices on 24 November 2026; docs/guides/validate.md shows the same way as a user goes it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpuproof.cli.main import cli
from gpuproof.errors import ExitCode, RecordError, UsageError

RECORDED = Path(__file__).parent / "to_ready"
AGREED = ("16e9", "8e9", "0.8e9", "1.6e9", "0.55e9", "1100", "1700", "0.6")
"""In the order of the rules: a GPU, its memory, both kinds of links, an all-reduce, training, its scaling."""


def judge(run: Path, *words: str) -> dict[str, Any]:
    """Judge the run again; return its result."""
    judged = CliRunner().invoke(cli, ["validate", "--from", str(run), "--json", *words])
    assert judged.exit_code == ExitCode.INCONCLUSIVE, judged.output  # simulated
    result: dict[str, Any] = json.loads(judged.stdout)
    return result


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RECORDED, tmp_path / "run"))


@pytest.fixture
def blank(run: Path) -> Path:
    """Rules to fill in, as gpuproof writes them."""
    path = run.parent / "agreed.yaml"
    judge(run, "--write-rules", str(path))
    return path


def filled(blank: Path) -> str:
    numbers = iter(AGREED)
    return re.sub("at_least: ,", lambda _: f"at_least: {next(numbers)},", blank.read_text())


def test_contracts_for_what_nothing_judged_make_it_ready(run: Path, blank: Path) -> None:
    assert judge(run)["detail"]["readiness"]["uncapped"] == "INCONCLUSIVE"
    blank.write_text(filled(blank))
    result = judge(run, "--rules", str(blank))
    assert result["detail"]["readiness"]["uncapped"] == "READY"
    assert result["headline"].startswith(
        "nothing is open: by contract: a GPU, fp32, agreed ≥ 16.0 GFLOP/s, measured"
    )


def test_a_blank_is_refused_by_its_line(run: Path, blank: Path) -> None:
    refused = CliRunner().invoke(cli, ["validate", "--from", str(run), "--rules", str(blank)])
    assert isinstance(refused.exception, UsageError)
    assert f"{blank}:9: " in str(refused.exception).splitlines()[1]


@pytest.mark.parametrize("number", range(len(AGREED)))
def test_without_one_of_them_its_cell_is_open(number: int, run: Path, blank: Path) -> None:
    head, *rules = filled(blank).split("  - name: ")
    title = rules.pop(number).partition(", agreed")[0]
    blank.write_text("  - name: ".join([head, *rules]))
    readiness = judge(run, "--rules", str(blank))["detail"]["readiness"]
    assert readiness["uncapped"] == "INCONCLUSIVE"
    assert any(reason.startswith(f"open: {title}") for reason in readiness["reasons"]), readiness["reasons"]


@pytest.mark.parametrize(
    ("kind", "change", "reason"),
    [
        ("window", lambda line: {"end_monotonic_s": line["begin_monotonic_s"] - 1}, "and took"),
        (
            "window",
            lambda line: {"end_monotonic_s": line["begin_monotonic_s"] + line["wall_s"] / 10},
            "and took",
        ),
        ("window", lambda _: {"host": "another"}, "is of host another, and the rank began on"),
        ("environment", lambda _: {"host": "another"}, "facts of host another are among the records"),
    ],
)
def test_a_run_whose_records_contradict_each_other_is_no_more_ready(
    kind: str, change: Callable[[dict[str, Any]], dict[str, Any]], reason: str, run: Path, blank: Path
) -> None:
    """One record of one launch is changed: the run is refused, with the place."""
    blank.write_text(filled(blank))
    journal = next(
        path for path in sorted(run.rglob("rank-0.jsonl")) if f'"kind":"{kind}"' in path.read_text()
    )
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    journal.write_text(
        "".join(json.dumps(line | change(line) if line["kind"] == kind else line) + "\n" for line in lines)
    )
    refused = CliRunner().invoke(cli, ["validate", "--from", str(run), "--rules", str(blank)])
    assert isinstance(refused.exception, RecordError)
    assert str(journal.parent) in str(refused.exception)
    assert reason in str(refused.exception)
