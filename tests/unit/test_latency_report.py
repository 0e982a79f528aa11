"""Latency and throughput are never mixed: what the report, JSON and CSV of each mode say, and leave out."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from concluding import doubt_of, table_of, words_of
from gpuproof.campaign.conclude import conclude
from gpuproof.records.run import Window
from gpuproof.verdict.doubts.base import Measured
from gpuproof.verdict.doubts.rules import doubts_about
from records_by_hand import NUM_STEPS, Story, case, setup, window, write_run

TIMES_S = tuple(0.001 * (i + 1) for i in range(NUM_STEPS))
"""1 ms to 100 ms, in order."""


def concluded(tmp_path: Path, *, mode: str, phase: str, launches: int = 1) -> tuple[str, dict[str, Any], str]:
    """Return the printed report, run_summary.json and summary.csv of a run in this mode."""
    inference = {"mode": mode, "phase": phase, "prompt_tokens": 6, "new_tokens": 4}
    built: dict[str, Any] = {
        "item": "generated tokens",
        "kv_cache_bytes": 4096,
        "bytes_per_step": 5e6,
        "flops_per_step": 1e9,
    }
    total_s = sum(TIMES_S)
    story = [
        Story(
            windows=[window_of(total_s)],
            setups=[setup(**built)],
            times_s=TIMES_S,
            case=case(kind="inference", replicate=replicate, inference=inference),
        ).records()
        for replicate in range(launches)
    ]
    sections: dict[str, Any] = {"inference": inference, "data": {"name": "synthetic"}}
    run = write_run(tmp_path, story, kind="inference", run={"repeats": launches}, **sections)
    text = words_of(conclude(run))
    summary = json.loads((run.root / "run_summary.json").read_text())
    return text, summary, (run.root / "summary.csv").read_text()


def window_of(total_s: float) -> Window:
    return window(wall_s=total_s, steps_s=total_s)


@pytest.mark.parametrize(
    ("phase", "what"),
    [("forward", "latency"), ("prefill", "time to first token"), ("decode", "time per output token")],
)
def test_latency_mode_says_how_long_and_never_how_many(phase: str, what: str, tmp_path: Path) -> None:
    text, summary, _ = concluded(tmp_path, mode="latency", phase=phase, launches=2)
    assert f"p50 {what} 50.5 ms" in text
    assert f"p99 {what} – p99 needs 299 steps (have 200)" in text
    assert f"shortest {what} 1.00 ms" in text
    assert f"longest {what} 100 ms" in text
    assert "throughput" not in text
    assert "tokens/s" not in text
    assert "step 5" not in text
    assert "FLOP/s" not in text
    latency = summary["inference"]["latency"]
    assert latency["of"] == what
    assert (latency["num_steps"], latency["min_s"], latency["max_s"]) == (200, 0.001, 0.1)
    assert latency["p50_s"] == pytest.approx(0.0505)
    assert latency["mean_s"] == pytest.approx(0.0505)
    assert latency["p99_s"] is None
    assert latency["percentiles_missing"] == ["p99 needs at least 299 values (200 measured)"]
    for field in ("throughput_samples_per_s", "throughput_items_per_s", "throughput_interval"):
        assert summary[field] is None


@pytest.mark.parametrize("phase", ["forward", "prefill", "decode"])
def test_throughput_mode_has_step_times_and_no_latency(phase: str, tmp_path: Path) -> None:
    text, summary, _ = concluded(tmp_path, mode="throughput", phase=phase)
    assert "throughput 198 generated tokens/s" in text
    assert "p50 step 50.5 ms" in text
    assert "memory traffic 99.0 MB/s" in text  # 5 MB in 50.5 ms
    assert "latency" not in text
    assert ("per sequence 19.8 generated tokens/s" in text) == (phase == "decode")
    assert ("time per output token 50.5 ms mean step of 10 sequences" in text) == (phase == "decode")
    assert "time to first token" not in text
    assert summary["inference"]["latency"] is None
    assert "queues its steps" in summary["inference"]["latency_missing"]
    assert summary["throughput_items_per_s"] == pytest.approx(1000 / sum(TIMES_S))
    assert summary["inference"]["kv_cache_bytes"] == 4096


@pytest.mark.parametrize("mode", ["latency", "throughput"])
def test_a_row_of_the_table_fills_one_modes_columns(mode: str, tmp_path: Path) -> None:
    _, _, table = concluded(tmp_path, mode=mode, phase="decode")
    (row,) = csv.DictReader(io.StringIO(table))
    rates = [row["throughput_samples_per_s"], row["throughput_items_per_s"]]
    latencies = [row["p50_latency_ms"], row["p95_latency_ms"]]
    assert (row["inference_mode"], row["inference_phase"]) == (mode, "decode")
    assert all(rates) == (mode == "throughput")
    assert all(latencies) == (mode == "latency")
    assert not any(latencies if mode == "throughput" else rates)
    assert row["p99_latency_ms"] == ""


def test_only_what_a_phase_has_is_told_of_it(tmp_path: Path) -> None:
    _, forward, _ = concluded(tmp_path / "a", mode="throughput", phase="forward")
    _, prefill, _ = concluded(tmp_path / "b", mode="throughput", phase="prefill")
    _, decode, _ = concluded(tmp_path / "c", mode="throughput", phase="decode")
    told = [
        (s["inference"]["prompt_tokens"], s["inference"]["new_tokens"]) for s in (forward, prefill, decode)
    ]
    assert told == [(None, None), (6, None), (6, 4)]


def test_launches_that_differ_differ_in_latency_there(tmp_path: Path) -> None:
    inference = {"mode": "latency"}
    stories = []
    for replicate, factor in enumerate((1.0, 1.5, 2.0)):
        times = tuple(factor * 0.01 for _ in range(NUM_STEPS))
        stories.append(
            Story(
                windows=[window_of(sum(times))],
                times_s=times,
                case=case(kind="inference", replicate=replicate, inference=inference),
            ).records()
        )
    run = write_run(tmp_path, stories, kind="inference", inference=inference, run={"repeats": 3})
    doubt = doubt_of(conclude(run), "launches-differ")
    assert doubt.reason == "launches differ: the median latency of 3 launches is not measured well enough"


@pytest.mark.parametrize(("mode", "found"), [("latency", []), ("throughput", ["host-bound"])])
def test_a_device_that_waits_between_steps_is_a_doubt_in_throughput_mode_alone(
    mode: str, found: list[str]
) -> None:
    story = Story(
        windows=[window(clock="host_synchronised", wall_s=1.2)],
        case=case(kind="inference", inference={"mode": mode}),
    )
    assert [doubt.code for doubt in doubts_about(Measured(launch=story.launch()))] == found


def test_points_in_latency_mode_show_latencies_and_no_throughput(tmp_path: Path) -> None:
    inference = {"mode": "latency", "phase": "forward", "prompt_tokens": 6, "new_tokens": 4}
    launches = []
    for place, name in enumerate(("precision=fp32", "precision=bf16")):
        times_s = tuple(time_s * (1 + place) for time_s in TIMES_S)
        own = replace(case(kind="inference", inference=inference), case_id=name)
        told = Story(windows=[window_of(sum(times_s))], setups=[setup()], times_s=times_s, case=own)
        launches.append(told.records())
    sections: dict[str, Any] = {"inference": inference, "data": {"name": "synthetic"}}
    matrix = {"training.precision": ["fp32", "bf16"]}
    run = write_run(tmp_path, launches, kind="inference", run={"repeats": 1}, matrix=matrix, **sections)
    rows = table_of(conclude(run), "Points")
    assert [row["p50 latency"].text for row in rows] == ["50.5 ms", "101 ms"]
    assert "throughput" not in rows[0]
