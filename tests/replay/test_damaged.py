"""Changed run directories, recordings, inventories: a subset of benchmarks/hostile_inputs.py, seeds fixed."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuproof.cli.main import cli

RUNS = Path(__file__).parent / "runs"
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
hostile = import_module("hostile_inputs")
ENDS = {"read", "refused"}


@pytest.mark.parametrize("kind", sorted(path.name for path in RUNS.iterdir()))
def test_a_changed_run_is_concluded_or_refused_in_a_paragraph(kind: str) -> None:
    assert set(hostile.run_ends(kind, 10)) <= ENDS


@pytest.mark.parametrize("kind", sorted(path.name for path in RUNS.iterdir()))
def test_an_odd_value_in_any_field_of_a_record_is_concluded_or_refused(kind: str) -> None:
    assert set(hostile.value_ends(kind, 10)) <= ENDS


def test_a_changed_recording_is_shown_or_refused_in_a_paragraph() -> None:
    ends = Counter(hostile.recording_ends(100))
    assert set(ends) == ENDS


def test_a_changed_inventory_is_read_or_refused_by_line() -> None:
    ends = Counter(hostile.inventory_ends(200))
    assert set(ends) == ENDS


@pytest.mark.parametrize(
    "damage",
    [
        {"origins": []},
        {"created": "x"},
        {"config": []},
        {"fleet": None},
        {"source": 1},
        {"schema_version": 99},
    ],
)
def test_a_damaged_run_is_one_row_of_the_list(damage: dict[str, object], tmp_path: Path) -> None:
    for name in ("good", "bad"):
        root = tmp_path / "x" / name
        shutil.copytree(RUNS / "training" / "run", root)
    described = json.loads((root / "run.json").read_text())
    (root / "run.json").write_text(json.dumps({**described, **damage}))
    listed = CliRunner().invoke(cli, ["runs", "--save-dir", str(tmp_path), "--json"])
    assert listed.exit_code == 0
    rows = {Path(row["run"]).name: row for row in json.loads(listed.output)}
    assert set(rows) == {"good", "bad"}
    assert str(rows["bad"]["what"]).startswith("damaged: ") is (damage != {"fleet": None})
    assert rows["good"]["created"] == described["created"]
