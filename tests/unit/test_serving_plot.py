"""The picture of a throughput–latency curve, from launches written down by hand."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from concluding import files_of, notes_of
from gpuproof.campaign.conclude import conclude, read_evidence
from gpuproof.launches.served import summarize_requests
from gpuproof.records.collected import CaseRecords
from gpuproof.records.page import Reference
from gpuproof.suites.base import PictureContent
from gpuproof.suites.serving import SUITE
from gpuproof.suites.serving.exports import curve_points
from records_by_hand import write_run
from served_by_hand import OFFLINE, SPEC, records

NUM_REQUESTS = 1000
CAPACITY_PER_S = 1000.0
SEARCH: dict[str, Any] = {"kind": "serving", "serving": {"latency_bound_s": 0.05, "search_precision": 0.1}}


def launch(rate_per_s: float, *, num_requests: int = NUM_REQUESTS) -> CaseRecords:
    """A queue of 5 ms service: latencies from once to four times the mean of 5 ms / (1 − load)."""
    mean_s = 0.005 / (1 - rate_per_s / CAPACITY_PER_S)
    latencies = [mean_s * (1 + 3 * (k % 100) / 100) for k in range(num_requests)]
    spec = replace(SPEC, rate_per_s=rate_per_s)
    return records(latencies, spec=spec, case_id=f"rate-{rate_per_s:010.3f}")


def offline() -> CaseRecords:
    latencies = [(k + 1) / CAPACITY_PER_S for k in range(NUM_REQUESTS)]
    return records(latencies, spec=OFFLINE, case_id="offline")


def searched(rates: Sequence[float]) -> list[CaseRecords]:
    return [offline(), *(launch(rate) for rate in rates)]


RATES = (50.0, 150.0, 300.0, 450.0, 600.0, 700.0, 900.0)


def test_a_search_is_drawn_and_named_among_the_files(tmp_path: Path) -> None:
    run = write_run(tmp_path, searched(RATES), **SEARCH)
    report = conclude(run)
    assert (run.root / "serving_curve.png").read_bytes().startswith(b"\x89PNG")
    assert "serving_curve.png" in files_of(report).names
    assert not [note for note in notes_of(report) if "serving_curve" in note]


def test_without_pillow_a_note_takes_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    run = write_run(tmp_path, searched(RATES), **SEARCH)
    report = conclude(run)
    assert "serving_curve.png" not in files_of(report).names
    (note,) = [note for note in notes_of(report) if "serving_curve" in note]
    assert "pip install 'gpuproof[monitor]'" in note


def test_the_curve_has_every_launch_the_medians_and_the_bound(tmp_path: Path) -> None:
    evidence = read_evidence(write_run(tmp_path, searched(RATES), **SEARCH))
    (content,) = (e.content for e in SUITE.conclude(evidence).exports if e.name == "serving_curve.png")
    assert isinstance(content, PictureContent)
    picture = content.make()
    assert picture is not None
    (chart,) = picture.charts
    launches = [served for found in evidence.launches if (served := summarize_requests(found))]
    for q in (50, 99):
        line, marks = (series for series in chart.series if series.name == f"p{q}")
        assert (line.form, marks.form) == ("line", "points")
        assert line.points == marks.points == curve_points(launches, q)
        assert [rate for rate, _ in marks.points] == list(RATES)
    assert chart.references[0] == Reference(label="bound: p99 under 50.0 ms", y=0.05)
    assert chart.y.is_logarithmic


@pytest.mark.parametrize(
    ("serving", "rates"),
    [({"rate_per_s": 100.0}, (100.0, 200.0)), ({"curve": False}, (100.0, 200.0)), ({}, (100.0,)), ({}, ())],
)
def test_without_a_curve_nothing_is_drawn(
    serving: dict[str, Any], rates: tuple[float, ...], tmp_path: Path
) -> None:
    run = write_run(tmp_path, searched(rates), **{**SEARCH, "serving": {**SEARCH["serving"], **serving}})
    report = conclude(run)
    assert not (run.root / "serving_curve.png").exists()
    assert "serving_curve.png" not in files_of(report).names
    assert not [note for note in notes_of(report) if "serving_curve" in note]


def test_a_percentile_without_enough_requests_is_no_point() -> None:
    launches = [
        served
        for found in (launch(500.0), launch(100.0, num_requests=200))
        if (served := summarize_requests(found))
    ]
    # Of 200 requests p50 is known, p99 needs 299. The median of 1, 1.03, … 3.97 times the mean is 2.485.
    rates, medians_s = zip(*curve_points(launches, 50), strict=True)
    assert rates == (100.0, 500.0)
    assert medians_s == pytest.approx([0.005 / 0.9 * 2.485, 0.01 * 2.485], rel=0.02)
    assert [rate for rate, _ in curve_points(launches, 99)] == [500.0]
