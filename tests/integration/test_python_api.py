"""The Python API: a run and its result, a result read again, and a recording beside a block of Python."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import assert_type

import pytest

import gpuproof
from gpuproof.errors import RecordError, UsageError
from gpuproof.monitor.marks import publish
from gpuproof.readings.recording import load_recording
from gpuproof.records.codec import to_json
from gpuproof.records.outcome import Judged, Outcome
from gpuproof.records.result import Doubt, Measure, Result
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
    result = assert_type(gpuproof.run("quick", {**overrides, "run.run_id": "r"}), Result)
    assert (result.run_id, result.num_launches) == ("r", 1)
    assert result.exit_code in MEASURED
    assert gpuproof.load_result("results/quick/r") == result


def test_a_mistake_in_a_recipe_is_an_exception() -> None:
    with pytest.raises(UsageError, match="no: unknown key"):
        gpuproof.run("quick", {"no.such": 1})
    with pytest.raises(UsageError, match="measures this machine alone"):
        gpuproof.run("quick", {"distributed.nodes": 2})


def test_a_rank_of_another_launch_starts_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UsageError, match="one of another launch"):
        gpuproof.run("quick")


def test_a_result_is_read_from_a_run_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text(json.dumps(to_json(RESULT)))
    assert gpuproof.load_result(tmp_path) == gpuproof.load_result(str(file)) == RESULT


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON"),
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
        pytest.raises(UsageError, match="refused its options"),
        gpuproof.monitor(tmp_path / "b", devices=[99]),
    ):
        raise AssertionError("the block began")
    assert "--devices 99" in capfd.readouterr().err


def test_the_package_that_is_called_is_the_package() -> None:
    package: object = sys.modules["gpuproof.monitor"]
    assert gpuproof.monitor is package
    with pytest.raises(AttributeError, match="has no attribute 'absent'"):
        gpuproof.absent  # noqa: B018
