"""Results of older tools: failed tests are named, and a file that contradicts itself is INVALID."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuproof.campaign.conclude import conclude_older
from gpuproof.campaign.finished import read_older_result
from gpuproof.cli.older import in_our_words
from gpuproof.records.result import Doubt
from gpuproof.report.terminal import terminal_text
from gpuproof.suites.load.conclude import with_suite_remedy

CLUSTER = {"world_size": 8, "global_batch_size": 512, "avg_step_time_ms": 47.2}


def test_a_failed_test_of_an_older_load_test_is_named(tmp_path: Path) -> None:
    tests = [
        {"test_name": "a", "success": True, "throughput_samples_per_second": 9.0},
        {"test_name": "b", "success": False},
    ]
    path = tmp_path / "load.json"
    path.write_text(json.dumps({"system_info": {"gpu_names": []}, "results": tests}))
    concluded = conclude_older(path)
    assert concluded is not None
    assert concluded.result.exit_code == 3
    assert "at b: " in terminal_text(concluded.page, width=100)
    assert "fresh processes" not in terminal_text(concluded.page, width=100)


@pytest.mark.parametrize(
    ("rate", "validity", "code"), [(14234, "INVALID", 4), (10847.5, "SUSPECT", 0), ("x", None, None)]
)
def test_a_rate_that_its_own_step_time_excludes_is_invalid(
    rate: float | str, validity: str | None, code: int | None, tmp_path: Path
) -> None:
    (tmp_path / "cluster.json").write_text(json.dumps({**CLUSTER, "throughput_samples_per_second": rate}))
    found = read_older_result(tmp_path / "cluster.json")
    assert (found and found.validity, found and found.exit_code) == (validity, code)


def test_the_groups_own_verbose_of_an_older_command_line_is_understood() -> None:
    assert in_our_words(["cli.py", "-v", "test", "load", "--quick"]) == ["load", "--quick", "--verbose"]
    assert in_our_words(["cli.py", "--verbose", "list-types"]) == ["cloud", "lambda", "types"]


@pytest.mark.parametrize("code", ["made-before", "short-at-power-cap", "few-steps"])
def test_no_remedy_of_the_suite_names_a_key_that_its_tests_set(code: str) -> None:
    of_a_run = Doubt(validity="SUSPECT", code=code, reason="r", remedy="Raise benchmark.measure_steps")
    assert "benchmark.measure" not in with_suite_remedy(of_a_run).remedy
