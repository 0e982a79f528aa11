"""The validation of an H100 as that of another card with something wrong: each is named as what it is.

Its records with one fact changed: lanes of its link, power limit, a count of memory errors, another process.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from running import gpuproof

RECORDED = Path(__file__).parent / "cards" / "validate_h100"
OWN_UUID, OTHER_UUID = (
    "GPU-22222222-0000-4000-8000-000000000002",
    "GPU-33333333-0000-4000-8000-000000000003",
)
Change = Callable[[dict[str, Any]], None]


def another_card(tmp_path: Path, *, of_host: Change | None = None, of_window: Change | None = None) -> Path:
    """Copy the run as one of another card and second, with its host or the window of its memory changed."""
    run = tmp_path / "another"
    shutil.copytree(RECORDED, run)
    for path in (path for path in run.rglob("*") if path.is_file()):
        text = path.read_text(encoding="utf-8").replace(OWN_UUID, OTHER_UUID)
        path.write_text(text.replace("2026-11-27T07:13:05", "2026-11-28T07:13:05"), encoding="utf-8")
        if path.suffix == ".jsonl":
            _change_lines(path, of_host, of_window if "memory" in str(path) else None)
    if of_host is not None:
        hosts = json.loads((run / "environment.json").read_text(encoding="utf-8"))
        for host in hosts.values():
            of_host(host)
        (run / "environment.json").write_text(json.dumps(hosts), encoding="utf-8")
    description = json.loads((run / "run.json").read_text(encoding="utf-8"))
    description["config"]["suite_options"]["validate"]["detects"] = 0.2
    (run / "run.json").write_text(json.dumps(description), encoding="utf-8")
    return run


def _change_lines(path: Path, of_host: Change | None, of_window: Change | None) -> None:
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for record in records:
        if record["kind"] == "environment" and of_host is not None:
            of_host(record["facts"])
        if record["kind"] == "window" and of_window is not None:
            of_window(record)
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")


def judged(run: Path, code: int) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return the page of a run as one line, and the cells of its rates by aspect."""
    shown = gpuproof("validate", "--from", run.name, "--json", cwd=run.parent)
    assert (shown.returncode, shown.stderr) == (code, "")
    result = json.loads(shown.stdout)
    page = gpuproof("report", run.name, "--verbose", cwd=run.parent)
    assert page.returncode == code
    cells = result["detail"]["readiness"]["cells"]
    return " ".join(page.stdout.split()), {
        cell["aspect"]: cell for cell in cells if cell["measure"] in ("throughput", "link bandwidth")
    }


def device(host: dict[str, Any], part: str, **values: Any) -> None:
    host["accelerators"]["devices"][0][part].update(values)


def test_the_healthy_card_has_its_memory_shown_and_says_what_is_open(tmp_path: Path) -> None:
    page, cells = judged(another_card(tmp_path), 4)
    assert page.startswith(
        "INCONCLUSIVE: no problems found; memory 19 % slow "
        "would have been detected; undecided (% of the data sheet): equal results, "
        "GEMM bf16 664 TFLOP/s (67 %)"
    )
    assert "training 3,592 samples/s (8.8 % MFU)" in page
    assert "fingerprint was not measured: 0 of 1 launches succeeded" in page
    assert (
        "advisory: FLOP/s per watt of GEMM bf16 959 GFLOP/s/W, FLOP/s per watt of GEMM tf32 519 GFLOP/s/W"
        in page
    )
    assert cells["memory"]["standing"] == "passed"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda host: device(host, "state", pcie_width=8), "pcie FAIL: x8, generation 5 of 5 at idle"),
        (
            lambda host: device(host, "static", power_limit_w=500.0),
            "clock policy FAIL: power limit 500 W of 700 W",
        ),
        (lambda host: device(host, "state", ecc_uncorrected_count=3), "memory health FAIL: "),
    ],
)
def test_what_is_wrong_with_a_card_is_named(change: Change, said: str, tmp_path: Path) -> None:
    page, _ = judged(another_card(tmp_path, of_host=change), 3)
    assert page.startswith("NOT-READY: GPU 0 on vm: ")
    assert said in page


def test_a_link_of_half_the_lanes_is_closed_by_no_reference(tmp_path: Path) -> None:
    _, cells = judged(another_card(tmp_path, of_host=lambda host: device(host, "state", pcie_width=8)), 3)
    assert cells["memory"]["standing"] == "passed"
    (links,) = (cell for cell in cells.values() if cell["aspect"] == "links")
    assert links["standing"] == "undecided"


def test_a_lowered_power_limit_is_no_slow_card(tmp_path: Path) -> None:
    lowered = another_card(tmp_path, of_host=lambda host: device(host, "static", power_limit_w=500.0))
    page, cells = judged(lowered, 3)
    assert "power_limit_w is 500 here but 700 there" in page
    assert {cell["standing"] for cell in cells.values()} == {"undecided"}


def test_another_process_is_named_and_its_window_closes_nothing(tmp_path: Path) -> None:
    def change(window: dict[str, Any]) -> None:
        window["neighbours"]["other_processes"] = 1

    page, cells = judged(another_card(tmp_path, of_window=change), 4)
    assert "SUSPECT: 1 other process uses NVIDIA H100 80GB" in page
    assert cells["memory"]["standing"] == "undecided"
    assert "a value that is SUSPECT is not compared with a reference" in cells["memory"]["reason"]
