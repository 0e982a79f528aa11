"""`report`, `runs` and the log options, called as a person would, in this process and without torch."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from gpuproof.base.errors import EnvironmentUnfitError, ExitCode, RecordError, UsageError
from gpuproof.campaign.conclude import conclude
from gpuproof.cli.main import cli
from gpuproof.cli.options import start_logging
from gpuproof.launchers.commands import INSTALLED_WORKER, node_side_for
from gpuproof.records.codec import to_json
from gpuproof.records.page import Table
from gpuproof.store.run import RunDirectory
from records_by_hand import one_rank, write_run
from replay.exports import RECORDED


def call(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


def test_report_prints_the_same_as_the_run_did_and_ends_as_it_did(tmp_path: Path) -> None:
    run = write_run(tmp_path, [one_rank(items=1).records()])
    shown = call("report", str(run.root))
    assert shown.exit_code == ExitCode.INCONCLUSIVE
    assert "INVALID: do not use these figures" in shown.output
    as_json = call("report", str(run.root), "--json")
    assert json.loads(as_json.stdout) == to_json(conclude(run).result)
    assert as_json.stdout == (run.root / "result.json").read_text()
    assert as_json.exit_code == ExitCode.INCONCLUSIVE


@pytest.mark.parametrize(
    ("form", "suffix", "begin", "figure"),
    [
        ("terminal", ".txt", "VALID: no problems found", "throughput    1,000 samples/s"),
        ("markdown", ".md", "**VALID**: no problems found", "1,000 samples/s"),
        ("html", ".html", "<!DOCTYPE html>", "1,000 samples/s"),
        ("json", ".json", '{\n  "schema_version": 1,\n  "suite": "recipe",', '"value": 1000.0'),
        ("csv", ".csv", "name,value,unit,text,", "throughput,1000.0,samples/s,"),
    ],
)
def test_a_report_in_every_format_to_the_terminal_or_a_file(
    form: str, suffix: str, begin: str, figure: str, tmp_path: Path
) -> None:
    run = write_run(tmp_path, [one_rank().records()])
    conclude(run)
    printed = call("report", str(run.root), "--format", form)
    assert (printed.exit_code, printed.stderr) == (0, "")
    assert printed.stdout.lower().startswith(begin.lower())
    assert figure in printed.stdout
    file = tmp_path / f"report{suffix}"
    named_by_its_suffix = call("report", str(run.root), "--output", str(file))
    assert named_by_its_suffix.exit_code == 0
    assert (named_by_its_suffix.stdout, named_by_its_suffix.stderr) == ("", f"Written: {file}\n")
    assert file.read_text(encoding="utf-8") == printed.stdout
    other = tmp_path / "report.of-no-known-kind"
    assert call("report", str(run.root), "--format", form, "-o", str(other)).exit_code == 0
    assert other.read_text(encoding="utf-8") == printed.stdout


def test_a_format_that_nobody_knows_is_a_usage_error(tmp_path: Path) -> None:
    run = write_run(tmp_path, [one_rank().records()])
    for words in (("--format", "pdf"), ("--output", str(tmp_path / "report.pdf"))):
        refused = call("report", str(run.root), *words)
        assert isinstance(refused.exception, UsageError)
        assert "terminal, markdown, html, json, csv" in str(refused.exception)
    assert not (tmp_path / "report.pdf").exists()
    lost = call("report", str(run.root), "-o", str(tmp_path / "absent" / "report.md"))
    assert isinstance(lost.exception, EnvironmentUnfitError)


def test_the_last_run_is_the_one_that_was_begun_last(tmp_path: Path) -> None:
    nothing = call("report", "last", "--save-dir", str(tmp_path))
    assert isinstance(nothing.exception, UsageError)
    for age_s, name in enumerate(("newest", "older", "oldest")):
        run = write_run(tmp_path, [one_rank().records()], run_id=name)
        os.utime(run.root / "run.json", (1e9 - age_s, 1e9 - age_s))
    shown = call("report", "last", "--save-dir", str(tmp_path), "--format", "json")
    assert json.loads(shown.stdout)["run_id"] == "newest"
    assert f"gpuproof report {tmp_path}" in call("report", "last", "--save-dir", str(tmp_path)).stdout


def test_report_of_nothing_is_a_usage_error(tmp_path: Path) -> None:
    result = call("report", str(tmp_path))
    assert isinstance(result.exception, UsageError)
    assert result.exception.exit_code == ExitCode.USAGE


def test_runs_lists_every_run_even_beside_a_damaged_one(tmp_path: Path) -> None:
    good = write_run(tmp_path, [one_rank().records()], run_id="good")
    conclude(good)
    write_run(tmp_path, [], run_id="begun")
    (write_run(tmp_path, [], run_id="damaged").root / "run.json").write_text("{")
    rows = {
        Path(row["run"]).name: row
        for row in json.loads(call("runs", "--save-dir", str(tmp_path), "--json").stdout)
    }
    assert rows["good"] == {
        "run": str(good.root),
        "created": "2026-11-20T12:00:00+00:00",
        "suite": "recipe",
        "what": "resnet18 training on digits",
        "launches": "1/1",
        "headline": "1,000 samples/s",
        "limited_by": None,
        "verdict": "VALID",
        "validity": "VALID",
        "next_step": None,
    }
    assert rows["begun"]["what"] == "training, recipe quick"
    assert {rows["begun"][key] for key in ("launches", "headline", "verdict", "validity")} == {None}
    assert rows["begun"]["next_step"] == f"gpuproof report {good.root.with_name('begun')}"
    assert "cannot be read" in rows["damaged"]["what"]
    assert rows["damaged"]["next_step"] is None
    shown = call("runs", "--save-dir", str(tmp_path))
    assert shown.exit_code == 0
    assert "1,000 samples/s" in shown.output
    (begun,) = [line for line in shown.output.splitlines() if "examples/begun" in line]
    assert "no result" in begun
    assert "gpuproof report" in begun


@pytest.mark.parametrize("width", [80, 140])
def test_runs_is_one_line_a_run_however_narrow_the_terminal(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("sys.argv", ["gpuproof", "runs"])
    for run_id in ("run_20261126T014313_11790", "with-a-name-that-is-longer-than-most", "c"):
        conclude(write_run(tmp_path, [one_rank().records()], run_id=run_id))
    write_run(tmp_path, [], run_id="begun")
    lines = call("runs", "--save-dir", str(tmp_path)).stdout.splitlines()
    assert len(lines) == 1 + 2 + 1 + 4
    assert max(map(len, lines[1:])) <= width
    assert "examples/run_20261126T014313_11790 " in "\n".join(lines)


@pytest.mark.parametrize("width", [60, 80, 110])
def test_a_narrow_list_of_runs_cuts_names_and_never_a_result(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for number in range(2):
        run_id = f"run_20261126T014313_1179{number}-with-a-name-that-is-long"
        conclude(write_run(tmp_path, [one_rank().records()], run_id=run_id))
    monkeypatch.setattr("sys.argv", ["gpuproof", "runs"])
    lines = call("runs", str(tmp_path)).stdout.splitlines()
    assert sum("1,000 samples/s" in line for line in lines) == 2
    assert len(lines) == 3 + 1 + 2
    assert max(map(len, lines[3:])) <= width


def test_runs_and_report_take_the_folder_as_a_key_and_runs_as_a_word(tmp_path: Path) -> None:
    run = write_run(tmp_path, [one_rank().records()])
    conclude(run)
    expected = call("runs", "--save-dir", str(tmp_path), "--json").stdout
    assert len(json.loads(expected)) == 1
    assert call("runs", str(tmp_path), "--json").stdout == expected
    assert call("runs", f"--run.save_dir={tmp_path}", "--json").stdout == expected
    assert call("report", "last", f"--run.save_dir={tmp_path}").exit_code == 0
    assert f"gpuproof runs {tmp_path}" in call("runs", str(run.root.parent)).stdout
    assert f"gpuproof report {run.root}" in call("runs", str(run.root)).stdout


def test_a_report_of_two_runs_names_the_command_that_compares_them(tmp_path: Path) -> None:
    run = write_run(tmp_path, [one_rank().records()])
    refused = call("report", str(run.root), "b")
    assert isinstance(refused.exception, UsageError)
    assert f"gpuproof compare {run.root} b" in str(refused.exception)


def test_runs_are_chosen_by_suite_and_verdict_and_keep_their_numbers(tmp_path: Path) -> None:
    for kind in ("one_rank", "failed", "sweep"):
        shutil.copytree(RECORDED / kind / "run", tmp_path / "examples" / kind)
        conclude(RunDirectory.open(tmp_path / "examples" / kind))

    def names(*words: str) -> list[str]:
        rows = json.loads(call("runs", "--save-dir", str(tmp_path), "--json", *words).stdout)
        return [Path(row["run"]).name for row in rows]

    every = names()
    assert set(every) == {"one_rank", "failed", "sweep"}
    assert names("--limit", "2") == every[:2]
    assert names("--suite", "sweep") == ["sweep"]
    assert names("--verdict", "valid") == ["failed"]
    assert set(names("--verdict", "SUSPECT", "--suite", "recipe")) == {"one_rank"}
    assert names("--verdict", "READY") == []
    shown = call("runs", "--save-dir", str(tmp_path), "--suite", "sweep").stdout.splitlines()
    assert shown[-1].split()[0] == str(every.index("sweep") + 1)


def test_the_verdict_of_a_run_is_in_colour(tmp_path: Path) -> None:
    from gpuproof.cli.report import page_of_runs

    tones = {}
    for verdict, validity in (
        ("VALID", "VALID"),
        ("SUSPECT", "SUSPECT"),
        ("READY", None),
        ("NOT-READY", None),
    ):
        row = {"number": 1, "run": str(tmp_path / "a"), "created": None, "what": "w", "headline": "h"}
        row |= {
            "launches": "1/1",
            "next_step": None,
            "limited_by": None,
            "verdict": verdict,
            "validity": validity,
        }
        (listed,) = page_of_runs([row], tmp_path).sections
        assert isinstance(listed, Table)
        tones[verdict] = listed.rows[0][-2].tone
    assert tones == {"VALID": "good", "SUSPECT": "warn", "READY": "good", "NOT-READY": "bad"}


LOAD = "load suite, 12 tests, fp32, data generated on the device"
SHOWN = {
    "one_rank": ("recipe", "medium training on synthetic", "1/1", "7,394 samples/s", "SUSPECT"),
    "training": ("recipe", "lenet5 training on digits", "3/3", "5,930 samples/s", "SUSPECT"),
    "two_ranks": ("recipe", "medium training on synthetic", "1/1", "6,269 samples/s", "SUSPECT"),
    "one_job": ("recipe", "lenet5 training on digits", "1/1", "4,535 samples/s", "SUSPECT"),
    "failed": ("recipe", "faulty training on synthetic", "1/2", "5,672 samples/s", "VALID"),
    "inference_latency": ("recipe", "medium inference on synthetic", "2/2", "78.7 µs p50 latency", "SUSPECT"),
    "generation": ("recipe", "decoder inference on synthetic", "2/2", "3,619 generated tokens/s", "SUSPECT"),
    "sweep": (
        "sweep",
        "medium training on synthetic, 4 points of data.batch_size × training.precision",
        *("8/8", "4 of 4 points", "SUSPECT"),
    ),
    "batch_limit": (
        "batch_limit",
        "faulty training on synthetic, 4 batch sizes",
        *("3/3", "batch 12", "SUSPECT"),
    ),
    "load": ("load", LOAD, "12/12", "12 of 12 tests", "SUSPECT"),
    "serving_scenario": ("serving", "medium on synthetic", "2/2", "1,286 requests/s", "SUSPECT"),
    "serving_search": ("serving", "simple_cnn on synthetic", "9/9", "669 requests/s", "SUSPECT"),
    "serving_tokens": ("serving", "decoder on synthetic", "1/1", "5.58 ms p50 latency", "SUSPECT"),
    "fleet_recipe": ("recipe", "medium training on synthetic", "4/4", "7,210 samples/s", "SUSPECT"),
    "fleet_load": ("load", LOAD, "24/36", "2 of 3 hosts", "SUSPECT"),
    "fleet_sweep": (
        "sweep",
        "medium training on synthetic, 2 points of data.batch_size",
        *("4/4", "2 of 2 hosts", "SUSPECT"),
    ),
}
"""Suite, what, launches, headline and verdict of each recorded run."""


def test_a_page_in_a_terminal_is_a_screen_and_with_verbose_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # what is asked of rich where nothing is a terminal
    monkeypatch.setenv("COLUMNS", "110")
    for kind in RECORDED.iterdir():
        run = tmp_path / kind.name
        shutil.copytree(kind / "run", run)
        conclude(RunDirectory.open(run))
        shown, whole = (call("report", str(run), *words).stdout for words in ((), ("--verbose",)))
        assert len(shown.splitlines()) <= 60
        assert ("--verbose" in shown) == (len(whole.splitlines()) > len(shown.splitlines()))
        assert "--verbose" not in whole


def test_runs_shows_verdict_and_headline_of_every_kind(tmp_path: Path) -> None:
    for kind in RECORDED.iterdir():
        shutil.copytree(kind / "run", tmp_path / "examples" / kind.name)
        conclude(RunDirectory.open(tmp_path / "examples" / kind.name))
    rows = {
        Path(row["run"]).name: row
        for row in json.loads(call("runs", "--save-dir", str(tmp_path), "--json").stdout)
    }
    keys = ("suite", "what", "launches", "headline", "verdict")
    assert {name: tuple(row[key] for key in keys) for name, row in rows.items()} == SHOWN
    for name, (*_, verdict) in SHOWN.items():
        lines = call("report", str(tmp_path / "examples" / name)).stdout.splitlines()
        assert lines[0].startswith(f"{verdict}: ")
        assert any(line.startswith("  date 2026-11-2") for line in lines[:10])
        assert not any("--verbose" in line for line in lines), "a pipe has all of a page"
    shown = " ".join(call("runs", "--save-dir", str(tmp_path)).stdout.split())
    assert "no result" not in shown
    for suite, _, launches, _, verdict in SHOWN.values():
        measured, planned = launches.split("/")
        assert (verdict if measured == planned else f"{verdict} {launches}") in shown, suite


def test_runs_says_how_to_begin_where_there_are_none(tmp_path: Path) -> None:
    shown = call("runs", "--save-dir", str(tmp_path))
    assert shown.output == f"No runs to list under {tmp_path}. Start one: gpuproof run quick\n"


def test_a_damaged_run_cannot_be_reported(tmp_path: Path) -> None:
    run = write_run(tmp_path, [])
    (run.root / "run.json").write_text("{")
    assert isinstance(call("report", str(run.root)).exception, RecordError)


@pytest.fixture
def gpuproof_logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("gpuproof")
    before = (logger.level, logger.propagate, list(logger.handlers))
    yield logger
    for handler in set(logger.handlers) - set(before[2]):
        handler.close()
    logger.level, logger.propagate, logger.handlers = before


def test_the_log_takes_every_detail_and_the_terminal_what_is_done(
    tmp_path: Path, gpuproof_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    start_logging(tmp_path / "run.log", verbose=True)
    gpuproof_logger.debug("detail")
    gpuproof_logger.info("done")
    lines = (tmp_path / "run.log").read_text().splitlines()
    assert [line.partition(" DEBUG ")[2] or line.partition(" INFO ")[2] for line in lines] == [
        *("gpuproof: detail", "gpuproof: done"),
    ]
    assert capsys.readouterr().err == "done\n"


@pytest.mark.usefixtures("gpuproof_logger")
def test_a_log_that_cannot_be_written_is_a_bad_option(tmp_path: Path) -> None:
    with pytest.raises(click.BadParameter, match="No such file or directory"):
        start_logging(tmp_path / "absent" / "run.log", verbose=False)


def test_another_python_gets_the_node_side_as_one_file() -> None:
    with node_side_for(None) as words:
        assert words == INSTALLED_WORKER
    with node_side_for("python3") as words:
        (archive,) = map(Path, words)
        assert archive.name == "gpuproof-node.pyz"
        assert archive.stat().st_size > 10_000
    assert not archive.exists()
