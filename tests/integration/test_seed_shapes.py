"""What the older tools wrote is shown, compared and exported, or refused with the command that takes it."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuproof.base.errors import ExitCode
from running import MEASURED, gpuproof
from seed_shapes import RESULTS, write_load, write_record, write_training, write_tree

Writer = Callable[[Path, float], Path]
HEADLINES = {"write_load": "1 of 2 tests", "write_tree": "7.5 % less"}
by_shape = pytest.mark.parametrize("write", RESULTS.values(), ids=lambda write: write.__name__)


@by_shape
def test_a_result_is_shown_with_its_headline_and_nothing_is_written_beside_it(
    write: Writer, tmp_path: Path
) -> None:
    path = write(tmp_path, 1000.0)
    before = sorted(tmp_path.rglob("*"))
    shown = gpuproof("report", str(path), cwd=tmp_path)
    expected = ExitCode.FAILED if write is write_load else ExitCode.DONE
    assert shown.returncode == expected, shown.stderr
    headline = HEADLINES.get(write.__name__, "1,000 samples/s")
    assert headline in " ".join(shown.stdout.split()[:40]), shown.stdout
    assert write is write_tree or sorted(tmp_path.rglob("*")) == before


@by_shape
def test_its_measures_are_exported(write: Writer, tmp_path: Path) -> None:
    path = write(tmp_path, 1000.0)
    exported = gpuproof("report", str(path), "--format", "csv", cwd=tmp_path)
    rows = list(csv.DictReader(exported.stdout.splitlines()))
    assert rows, exported.stderr
    if write is not write_tree:
        rates = {row["value"] for row in rows if row["name"] == "throughput"}
        assert "1000.0" in rates
        assert "0.0" not in rates  # an epoch within the warm-up has no throughput
    page = gpuproof("report", str(path), "--output", "page.html", cwd=tmp_path)
    assert page.returncode in (*MEASURED, ExitCode.FAILED), page.stderr  # one of two tests failed
    assert "<html" in (tmp_path / "page.html").read_text(encoding="utf-8")


@by_shape
def test_two_of_them_stand_side_by_side_and_none_wins(write: Writer, tmp_path: Path) -> None:
    paths = [str(write(tmp_path, rate)) for rate in (1000.0, 900.0)]
    compared = gpuproof("compare", *paths, "--json", cwd=tmp_path)
    assert compared.returncode == ExitCode.INCONCLUSIVE, compared.stdout + compared.stderr
    result = json.loads(compared.stdout)
    assert result["verdict"] == "CANNOT TELL"
    assert result["detail"]["measures"]


def test_any_file_of_a_training_is_its_run(tmp_path: Path) -> None:
    run = write_training(tmp_path, 1000.0)
    texts = {gpuproof("report", str(path), "--json", cwd=tmp_path).stdout for path in (run, *run.iterdir())}
    (text,) = texts
    assert [measure["labels"] for measure in json.loads(text)["measures"]] == [{}, {"epoch": 1}, {"epoch": 2}]


def test_a_result_is_no_recording_and_a_recording_no_result(tmp_path: Path) -> None:
    result, record = str(write_load(tmp_path, 1000.0)), str(write_record(tmp_path, 1424.3))
    refused = gpuproof("monitor", "show", result, cwd=tmp_path)
    assert refused.returncode == ExitCode.USAGE
    assert "not readings (keys: results, system_info, test_summary)" in refused.stderr
    assert "`gpuproof report FILE`" in refused.stderr
    for words in (("report", record), ("compare", record, record)):
        refused = gpuproof(*words, cwd=tmp_path)
        assert refused.returncode == ExitCode.USAGE
        assert f"`gpuproof monitor show {record}`" in refused.stderr
    assert gpuproof("monitor", "show", record, cwd=tmp_path).returncode == ExitCode.DONE


@pytest.mark.parametrize("text", ["", "{", "[]", "[1]", "null", '{"results": 3, "system_info": {}}'])
def test_what_is_in_no_shape_is_refused_with_the_next_step(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    refused = gpuproof("report", "x.json", cwd=tmp_path)
    assert refused.returncode == ExitCode.USAGE
    assert "x.json: not a run directory" in refused.stderr
    assert "Traceback" not in refused.stderr
