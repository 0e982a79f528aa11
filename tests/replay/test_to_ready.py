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

from gpuproof.base.errors import ExitCode, UsageError
from gpuproof.cli.main import cli

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


Change = Callable[[dict[str, Any]], dict[str, Any]]
CONTRADICTIONS: list[tuple[str, str, Change, str]] = [
    ("training", "window", lambda x: {"end_monotonic_s": x["begin_monotonic_s"] - 1}, "but took"),
    (
        "links",
        "window",
        lambda x: {"end_monotonic_s": x["begin_monotonic_s"] + x["wall_s"] / 10},
        "but took",
    ),
    (
        "training-one",
        "window",
        lambda _: {"host": "another"},
        "is from host another, but the rank started on vm",
    ),
    (
        "training",
        "start",
        lambda _: {"host": "another"},
        "facts of host vm are among the records of rank 0 on another",
    ),
    ("fingerprint", "environment", lambda _: {"host": "another"}, "facts of host another are among"),
    ("training", "steps", lambda _: {"first_step": 3}, "step times of rank 0 continue at step 3, after 0"),
    (
        "training",
        "steps",
        lambda x: {"durations_s": x["durations_s"][1:]},
        "99 step times of rank 0 were stored",
    ),
    (
        "training",
        "window",
        lambda x: {"items": x["items"] + 8},
        "counts 808 items, but its steps add up to 800",
    ),
    ("gemm-fp32-device0", "window", lambda x: {"num_steps": x["num_steps"] + 1}, "its steps add up to 28"),
    ("links", "window", lambda x: {"num_steps": x["num_steps"] + 9}, "lists 130 repeats"),
    ("links", "window", lambda x: {"items": x["items"] + 9}, "lists 130 repeats"),
    ("links", "probe", lambda x: {"durations_s": x["durations_s"][1:]}, "lists 129 repeats"),
    ("links", "probe", lambda x: {"durations_s": [x / 2 for x in x["durations_s"]]}, "lists 130 repeats"),
    ("collective-within", "window", lambda x: {"num_steps": x["num_steps"] + 9}, "lists 80 repeats"),
    ("collective-within", "collective", lambda x: {"size_bytes": x["size_bytes"] * 2}, "4, 8 bytes"),
]
"""Of a launch, what is changed in the first record of a kind of its first rank, and what the page says."""


@pytest.mark.parametrize(("case_id", "kind", "change", "reason"), CONTRADICTIONS)
def test_a_launch_whose_records_contradict_each_other_leaves_the_run_open(
    case_id: str, kind: str, change: Change, reason: str, run: Path, blank: Path
) -> None:
    """The others are judged, and the page says what is wrong."""
    blank.write_text(filled(blank))
    journal = run / "cases" / case_id / "0" / "rank-0.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    first = next(x for x in lines if x["kind"] == kind and x.get("phase", "measure") == "measure")
    first.update(change(first))
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert_open(run, blank, case_id, reason)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hosts": ["another"]}, "it was scheduled on another, but its ranks ran on vm"),
        ({"ranks_per_host": 4}, "it was scheduled with 4 ranks, but has 2"),
        ({"hosts": ["vm", "another"]}, "it was scheduled with 4 ranks, but has 2"),
    ],
)
def test_a_launch_that_ran_elsewhere_than_it_was_placed_leaves_the_run_open(
    change: dict[str, Any], reason: str, run: Path, blank: Path
) -> None:
    blank.write_text(filled(blank))
    placed = run / "cases" / "training" / "0" / "placed.json"
    placed.write_text(json.dumps(json.loads(placed.read_text()) | change))
    assert_open(run, blank, "training", reason)


def assert_open(run: Path, rules: Path, case_id: str, reason: str) -> None:
    result = judge(run, "--rules", str(rules))
    readiness = result["detail"]["readiness"]
    assert readiness["uncapped"] == "INCONCLUSIVE"
    assert [x for x in readiness["reasons"] if f"{case_id} was " in x and reason in x]
    others = {measure["case"] for measure in result["measures"]}
    assert {"memory-device0", "pattern"} <= others


def test_a_baseline_asks_one_gpu_for_nothing_that_takes_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links between devices, and training on one device against all of them: one GPU has neither."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "c"):
        shutil.copytree(RECORDED.parent / "cards" / "validate_h100", name)
        described = json.loads(Path(name, "run.json").read_text(encoding="utf-8"))
        Path(name, "run.json").write_text(json.dumps({**described, "run_id": name}), encoding="utf-8")
        CliRunner().invoke(cli, ["report", name])
    assert CliRunner().invoke(cli, ["baseline", "record", "mine", "a", "b", "c"]).exit_code == 0
    readiness = judge(Path("a"), "--baseline", "mine")["detail"]["readiness"]
    assert not [reason for reason in readiness["reasons"] if "it matches nothing" in reason]
    still_open = {cell["title"] for cell in readiness["cells"] if cell["standing"] != "passed"}
    assert still_open == {"equal results", "a GPU"}
