"""The Python API: a run and its result, a result read again, and a recording beside a block of Python."""

from __future__ import annotations

import json
import sys
from dataclasses import fields, replace
from html import unescape
from inspect import signature
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import assert_type, cast

import pytest

import gpuproof
from gpuproof.base.errors import EnvironmentUnfitError, RecordError, UsageError
from gpuproof.campaign.conclude import conclude
from gpuproof.monitor import watch
from gpuproof.monitor.marks import publish
from gpuproof.readings.recording import load_recording
from gpuproof.records.codec import to_json
from gpuproof.records.outcome import Judged, Outcome
from gpuproof.records.result import Doubt, LaunchValue, Measure, MeasureInterval, Result
from gpuproof.report.html import html
from gpuproof.store.run import RunDirectory
from running import LAUNCHER_VARIABLES, MEASURED, TINY

RESULT = Result(
    suite="recipe",
    run_id="r",
    gpuproof_version=gpuproof.__version__,
    validity="SUSPECT",
    verdict="SUSPECT",
    headline="95.7 samples/s",
    exit_code=0,
    num_launches=1,
    num_planned=3,
    conditions={"device": "CPU", "num_threads": 2},
    doubts=(Doubt(validity="SUSPECT", code="few_launches", reason="one launch", remedy="More"),),
    failures=(),
    measures=(Measure(name="throughput", value=95.7, unit="samples/s", text="95.7 samples/s"),),
    outcomes=(
        Judged(name="steady", outcome=Outcome(status="SKIP", subject="host/a", reason="too few steps")),
    ),
)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHER_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_a_run_returns_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tiny = dict(word.removeprefix("--").split("=") for word in TINY)
    overrides = {key: json.loads(v) if v[0].isdigit() else v for key, v in tiny.items()}
    result = assert_type(gpuproof.run("quick", {**overrides, "run.run_id": "r"}), gpuproof.RunResult)
    assert (result.run_id, result.num_launches) == ("r", 1)
    assert result.exit_code in MEASURED
    assert gpuproof.load_result("results/quick/r") == result
    assert assert_type(result["throughput"], Measure) in result.measures
    concluded = conclude(RunDirectory.open(Path("results/quick/r")))
    assert page_in(result) == html(concluded.page)
    before_files, _, files = html(concluded.page).partition("<h2>Files</h2>")
    assert files
    assert page_in(gpuproof.load_result("results/quick/r")).startswith(before_files)
    with pytest.raises(UsageError, match=r"^between_sessions: 2 is not a fraction in \[0, 1\)"):
        gpuproof.compare("results/quick/r", "results/quick/r", between_sessions=2)


def page_in(result: gpuproof.RunResult) -> str:
    """Return the page that a notebook's frame holds."""
    before, _, frame = result._repr_html_().partition('srcdoc="')
    assert before == "<iframe "
    return unescape(frame.partition('"')[0])


def test_a_mistake_in_a_recipe_is_an_exception() -> None:
    with pytest.raises(UsageError, match=r"^overrides: no: unknown key"):
        gpuproof.run("quick", {"no.such": 1})
    with pytest.raises(UsageError, match=r"^overrides: data.batch_size: "):
        gpuproof.run("quick", {"data.batch_size": "many"})
    with pytest.raises(UsageError, match="only measures this machine"):
        gpuproof.run("quick", {"distributed.nodes": 2})


def test_a_rank_of_another_launch_starts_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UsageError, match="a rank of another launch"):
        gpuproof.run("quick")


def test_a_measure_is_had_by_its_name() -> None:
    twice = replace(RESULT.measures[0], case="b")
    result = run_result(RESULT.measures[0], replace(twice, subject="host/a", name="power"))
    assert result["throughput"] == RESULT.measures[0]
    for error in (KeyError, UsageError):
        with pytest.raises(error, match="no measure of the whole run has this name"):
            result["power"]
    with pytest.raises(KeyError, match=r"2 measures have this name: main \(value\), b \(value\)"):
        run_result(RESULT.measures[0], twice)["throughput"]
    with pytest.raises(KeyError, match="none: nothing was measured"):
        run_result()["throughput"]


def run_result(*measures: Measure) -> gpuproof.RunResult:
    values = {field.name: getattr(RESULT, field.name) for field in fields(Result)}
    return gpuproof.RunResult(**{**values, "measures": measures})


def test_measures_are_rows_of_plain_values(monkeypatch: pytest.MonkeyPatch) -> None:
    interval = MeasureInterval(low=90.0, high=101.0, level=0.95, kind="within_launch", method="t")
    launch = LaunchValue(replicate=0, order=0, value=95.7)
    first = replace(RESULT.measures[0], interval=interval, launches=(launch,))
    other = replace(RESULT.measures[0], name="latency", value=None, missing="idle", labels={"q": 99})
    rows = run_result(first, other).to_records()
    assert [row["name"] for row in rows] == ["throughput", "latency"]
    assert [(row["interval.low"], row["label.q"]) for row in rows] == [(90.0, None), (None, 99)]
    assert [row["launches"][0]["value"] for row in rows[:1]] == [95.7]
    assert {tuple(row) for row in rows} == {tuple(rows[0])}
    monkeypatch.setitem(sys.modules, "pandas", cast(ModuleType, SimpleNamespace(DataFrame=list)))
    assert run_result(first, other).to_frame() == rows
    monkeypatch.setitem(sys.modules, "pandas", cast(ModuleType, None))  # as where it is not installed
    with pytest.raises(EnvironmentUnfitError, match=r"pip install pandas, or .*to_records"):
        run_result(first).to_frame()


def test_a_result_of_another_version_is_shown_by_its_measures() -> None:
    assert "95.7 samples/s" in page_in(run_result(*RESULT.measures))  # its detail is empty
    assert "95.7 samples/s" in page_in(replace(run_result(*RESULT.measures), suite="of_a_plugin"))


def test_monitor_says_what_it_takes() -> None:
    assert list(signature(gpuproof.monitor).parameters) == list(signature(watch.monitor).parameters)
    assert signature(gpuproof.monitor).parameters["devices"].default is None


def test_a_result_is_read_from_a_run_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text(json.dumps(to_json(RESULT)))
    assert gpuproof.load_result(tmp_path) == gpuproof.load_result(str(file)) == run_result(*RESULT.measures)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "expected an object for Result"),
        (json.dumps({**to_json(RESULT), "headline": 5}), "headline: expected str, found int"),
        (json.dumps(to_json(replace(RESULT, schema_version=99))), "Install a newer gpuproof"),
    ],
)
def test_a_damaged_result_names_its_file(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text(content)
    with pytest.raises(RecordError, match=message) as caught:
        gpuproof.load_result(tmp_path)
    assert str(file) in str(caught.value)


def test_a_folder_without_a_result(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="gpuproof report RUN"):
        gpuproof.load_result(tmp_path)


def test_a_block_is_recorded_with_its_marks(tmp_path: Path) -> None:
    with gpuproof.monitor(tmp_path / "block.jsonl", interval_s=0.05) as path:
        assert publish(phase="train")
        sum(range(3_000_000))
    assert_type(path, Path)
    assert not publish(phase="after")
    recording = load_recording(path)
    assert [span.name for span in recording.phases()] == ["train"]
    assert recording.end is not None


def test_what_fails_in_a_block_is_recorded_and_passed_on(tmp_path: Path) -> None:
    path = tmp_path / "block.jsonl"
    with pytest.raises(ZeroDivisionError), gpuproof.monitor(path):
        raise ZeroDivisionError
    assert '"recording_end"' in path.read_text().splitlines()[-1]
    with pytest.raises(UsageError, match="exists"), gpuproof.monitor(path):
        raise AssertionError("the recording that was there is not written over")


def test_a_device_that_is_not_there_is_refused_before_the_block(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with (
        pytest.raises(UsageError, match=r"devices=\[99\]: the sampler rejected its options"),
        gpuproof.monitor(tmp_path / "b", devices=[99]),
    ):
        raise AssertionError("the block began")
    assert "--devices 99" in capfd.readouterr().err


def test_the_package_that_is_called_is_the_package() -> None:
    package: object = sys.modules["gpuproof.monitor"]
    assert gpuproof.monitor is package
    with pytest.raises(AttributeError, match="has no attribute 'absent'"):
        gpuproof.absent  # noqa: B018
