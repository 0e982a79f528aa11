"""Runs of real cards, read again: their numbers to the last digit, and what limited each.

An NVIDIA H100 and an H200 of 27 November 2026, PyTorch 2.11.0+cu130, by gpuproof 0.1.0 (docs/lab-log.md).
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from gpuproof.config.load import load_config
from gpuproof.store.names import read_config
from gpuproof.store.run import RunDirectory
from gpuproof.suites.base import read_places
from gpuproof.suites.validate import SUITE
from gpuproof.suites.validate.options import read_options
from running import gpuproof

HERE = Path(__file__).parent / "cards"


def report(name: str, tmp_path: Path, *, code: int = 0) -> str:
    """Report a copy of a run, as one line."""
    shutil.copytree(HERE / name, tmp_path / name)
    shown = gpuproof("report", name, "--verbose", cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (code, "")
    return " ".join(shown.stdout.split())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "decode_h100",
            "1,146 generated tokens/s ±6.1 % limited by the host: GPU idle for 68 % of the window; with "
            "these kernels and clocks at most about 3,577 generated tokens/s",
        ),
        (
            "gemm_h200",
            "612 products/s ±0.15 % limited by the power cap: 700 W (the default), SM clock 1,485 of "
            "1,980 MHz, 100 % of the window; also by compute",
        ),
        (
            "lm_h100",
            "105,224 tokens/s ±1.6 % limited by: unknown, because the GPU was busy, at 27 % of the bf16 peak",
        ),
        ("resnet50_h100", "3,963 samples/s ±1.0 % limited by: unknown, because the GPU was busy, at 9.7 %"),
        ("load_h200", "12 of 12 tests limited by the host: at 12 of 12 points"),
    ],
)
def test_a_card_keeps_its_number_and_says_what_limited_it(name: str, said: str, tmp_path: Path) -> None:
    page = report(name, tmp_path)
    assert said in page
    assert "below the default" not in page
    assert "host-bound" not in page


def test_a_window_at_the_power_cap_is_one_level_and_says_which_drift_it_would_have_shown(
    tmp_path: Path,
) -> None:
    page = report("gemm_h200", tmp_path)
    assert page.startswith("VALID")
    assert (
        "at the power cap for 30.0 s without a visible period: a drift of 1.5 % during that time would have"
        in page
    )


def test_two_seconds_at_the_power_cap_are_too_short_and_say_how_long_they_need_to_be(tmp_path: Path) -> None:
    shutil.copytree(HERE / "validate_h100", tmp_path / "validate_h100")
    shown = gpuproof("report", "validate_h100", "--json", cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (4, "")
    doubts = {d["code"]: d for d in json.loads(shown.stdout)["doubts"]}
    assert "without a visible period; 20 s" in doubts["short-at-power-cap"]["reason"]
    assert "unsteady" not in doubts


def test_what_the_h100_left_open_has_its_reason_and_a_remedy_and_no_contract_closes_a_short_window(
    tmp_path: Path,
) -> None:
    """Its release gave one device no fingerprint and its products two seconds at the power cap."""
    shutil.copytree(HERE / "validate_h100", tmp_path / "validate_h100")
    rules = tmp_path / "agreed.yaml"
    gpuproof("validate", "--from", "validate_h100", "--write-rules", "agreed.yaml", cwd=tmp_path)
    numbers = iter(("6e14", "3e14", "2.5e12", "40e9", "3000"))
    rules.write_text(re.sub("at_least: [^,]*,", lambda _: f"at_least: {next(numbers)},", rules.read_text()))
    shown = gpuproof("validate", "--from", "validate_h100", "--rules", "agreed.yaml", "--json", cwd=tmp_path)
    assert shown.returncode == 4
    cells = json.loads(shown.stdout)["detail"]["readiness"]["cells"]
    still_open = {
        ", ".join([cell["title"], *([cell["labels"]["dtype"]] if "dtype" in cell["labels"] else [])]): cell
        for cell in cells
        if cell["standing"] != "passed"
    }
    assert still_open.keys() == {"equal results", "a GPU, bf16", "a GPU, tf32"}
    equal, product = still_open["equal results"], still_open["a GPU, bf16"]
    assert equal["reason"].startswith("it was not measured (wrong values of stage fingerprint)")
    assert equal["next_step"] == "Finish the run with --resume"
    assert product["reason"].startswith("too short at the power cap: 2.08 s")
    assert product["next_step"] == "Set validate.window_s=20"


def test_the_h100s_page_names_what_closes_it_and_shows_what_another_tool_measured_without_a_fail(
    tmp_path: Path,
) -> None:
    page = report("validate_h100", tmp_path, code=4)
    assert page.startswith(
        "INCONCLUSIVE: no problems found; undecided (% of the "
        "data sheet): equal results, GEMM bf16 664 TFLOP/s (67 %), "
    )
    assert "To close what is open gpuproof validate --resume validate_h100 gpuproof baseline record" in page
    assert all(text in page for text in ("gpu-fryer:", "730 TFLOP/s", "so they do not affect the verdict"))
    assert " FAIL " not in page
    assert "GPU-2222" not in page


def test_the_remedies_of_what_the_h100_left_open_can_be_followed() -> None:
    """Resumed, the run launches just what was not measured; the longer window is accepted."""
    run = RunDirectory(HERE / "validate_h100")
    description = run.description()
    state = SUITE.begin(read_config(run), read_places(description))
    for launch in run.cases():
        state = SUITE.settle(state, launch)
    assert [case.case_id for case in SUITE.next(state, {}, None)] == ["fingerprint"]
    longer = load_config("validate-quick", ["--validate.window_s=20"]).config
    assert read_options(longer).window_s == 20


def test_a_host_that_limits_a_generation_is_no_reason_to_doubt_it(tmp_path: Path) -> None:
    page = report("decode_h100", tmp_path)
    why = page[page.index("Why SUSPECT") :]
    assert "[stalled]" in why
    assert "host launches steps" not in page


def test_a_comparison_says_that_a_rate_of_the_host_says_nothing_about_the_device(tmp_path: Path) -> None:
    for side in ("a", "b"):
        shutil.copytree(HERE / "decode_h100", tmp_path / side)
        assert gpuproof("report", side, cwd=tmp_path).returncode == 0
    shown = gpuproof("compare", "a", "b", "--verbose", cwd=tmp_path)
    shown_text = " ".join(shown.stdout.split())
    assert "A is limited by its host, so its rate says nothing about its device" in shown_text
    assert "different limits" not in shown_text


OWN_UUID, OTHER_UUID = (
    "GPU-22222222-0000-4000-8000-000000000002",
    "GPU-33333333-0000-4000-8000-000000000003",
)


def memory_and_link(folder: Path) -> dict[str, dict[str, object]]:
    """Judge a run again, and return the cells of its memory and of copies to its GPU."""
    judged = gpuproof("validate", "--from", folder.name, "--json", cwd=folder.parent)
    assert (judged.returncode, judged.stderr) == (4, "")
    cells = json.loads(judged.stdout)["detail"]["readiness"]["cells"]
    to_gpu = f"link/host/vm>host/vm/gpu/{OTHER_UUID}"
    return {
        cell["aspect"]: cell
        for cell in cells
        if cell["aspect"] == "memory" or cell["subject"] in (to_gpu, to_gpu.replace(OTHER_UUID, OWN_UUID))
        if cell["measure"] != "wrong values"
    }


def test_a_run_is_not_judged_by_the_reference_that_was_made_of_it(tmp_path: Path) -> None:
    shutil.copytree(HERE / "validate_h100", tmp_path / "validate_h100")
    cells = memory_and_link(tmp_path / "validate_h100")
    assert {name: cell["standing"] for name, cell in cells.items()} == {
        "memory": "undecided",
        "links": "undecided",
    }
    assert all("made from this very run or card" in str(cell["reason"]) for cell in cells.values())
    assert all("gpuproof baseline record" in str(cell["next_step"]) for cell in cells.values())


def test_another_card_is_judged_by_the_reference_of_the_first(tmp_path: Path) -> None:
    """The same run under another UUID, of another second, and with what READY asks for today."""
    run = tmp_path / "another"
    shutil.copytree(HERE / "validate_h100", run)
    for path in (path for path in run.rglob("*") if path.is_file()):
        text = path.read_text(encoding="utf-8").replace(OWN_UUID, OTHER_UUID)
        path.write_text(text, encoding="utf-8")
    description = json.loads((run / "run.json").read_text(encoding="utf-8"))
    description["created"] = "2026-11-28T07:13:05+00:00"
    description["config"]["suite_options"]["validate"]["detects"] = 0.2
    (run / "run.json").write_text(json.dumps(description), encoding="utf-8")
    cells = memory_and_link(run)
    assert cells["memory"]["standing"] == "passed"
    assert cells["memory"]["resolution"] == pytest.approx(0.189, abs=0.001)
    assert cells["memory"]["decided_by"] == ["reference of NVIDIA H100 80GB HBM3"]
    assert cells["links"]["standing"] == "undecided"
    assert "detects no loss under 31 %, and 20 % must be detected" in str(cells["links"]["reason"])
