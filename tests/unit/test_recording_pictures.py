"""Pictures of recordings: their marks are the readings, how these are reduced, and what is left out."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import recordings as rec
from gpuproof.comparison.recordings import compare
from gpuproof.observe.side_by_side import balance_picture, comparison_picture, memory_picture
from gpuproof.observe.timeline import BAND_PIECES, THROTTLE_FILLS, flagged, recording_picture
from gpuproof.readings.metric_text import STATE_REASONS
from gpuproof.readings.recording import RecordingData
from gpuproof.readings.series import bands, envelope
from gpuproof.records.page import Chart, Picture, Series
from gpuproof.records.readings import DriverEvent, ThrottleReason


def test_the_envelope_keeps_every_extreme() -> None:
    """Ten seconds a piece: the one spike of 990 in piece 3 is its highest, and 0 its median."""
    times = np.arange(100.0)
    column = np.zeros(100)
    column[37] = 990.0
    low, middle, high = envelope(times, column, pieces=10).levels
    assert high.tolist() == [0, 0, 0, 990, 0, 0, 0, 0, 0, 0]
    assert low.tolist() == middle.tolist() == [0] * 10


@pytest.mark.parametrize("pieces", [10, 1000])
def test_a_hole_stays_a_hole(pieces: int) -> None:
    times = np.arange(200.0)
    column = np.where((times >= 60) & (times < 140), np.nan, 5.0)
    shape = envelope(times, column, pieces=pieces)
    inside = (shape.time_s > 80) & (shape.time_s <= 140)
    assert inside.any()
    assert np.isnan(shape.levels[1][inside][:-1]).all() or np.isnan(shape.levels[1][inside]).sum() == 1
    assert np.nanmax(shape.levels[2]) == np.nanmin(shape.levels[0]) == 5.0


def test_slow_readings_are_a_line_and_not_dots() -> None:
    """A reading each fifth tick is its usual step, not a hole."""
    times = np.arange(50.0)
    shape = envelope(times, np.where(times % 5 == 0, 1.0, np.nan), pieces=100)
    assert shape.time_s.tolist() == list(range(0, 50, 5))
    assert not np.isnan(shape.levels).any()


def test_stretches_of_throttling_are_joined_to_what_can_be_seen() -> None:
    times = np.arange(10.0)
    flags = np.isin(times, (2, 3, 7))
    assert flagged(times, flags) == [(2.0, 4.0), (7.0, 8.0)]
    assert flagged(times, np.zeros(10, dtype=bool)) == []
    day = np.arange(86_400.0)
    flicker = day % 2 == 0
    assert len(flagged(day, flicker)) == 1


def test_a_hole_in_the_readings_is_no_throttling() -> None:
    """Throttled before and after half a minute that nobody read: 10 s of it, and a reading stands for one."""
    times = np.array([*range(10), *range(40, 50)], dtype=float)
    assert flagged(times, np.ones(20, dtype=bool)) == [(0.0, 10.0), (40.0, 49.0)]


def eventful(folder: Path, *, gpus: int, name: str = "run.jsonl") -> RecordingData:
    samples = [
        rec.sample(
            t,
            {
                g: {
                    "util_gpu_percent": 90.0,
                    "mem_used_bytes": 2.0**33 * (g + 1),
                    "power_w": 300.0 + t % 7,
                    "power_limit_w": 400.0,
                    "temp_gpu_c": 70.0,
                    "clock_sm_mhz": 1500.0,
                }
                for g in range(gpus)
            },
            reasons=dict.fromkeys(range(gpus), ("thermal_software",) if t > 20 else ()),
            host={"cpu_percent": 40.0},
        )
        for t in range(40)
    ]
    marks = [rec.mark(0, phase="load"), rec.mark(10, phase="train")]
    head = rec.header([rec.identity(g) for g in range(gpus)])
    return rec.loaded(folder, [head, *marks, *samples], name=name)


def charts_of(picture: Picture) -> dict[str, Chart]:
    return {chart.y.label: chart for chart in picture.charts}


def series_of(chart: Chart) -> dict[str, Series]:
    return {series.name: series for series in chart.series}


def test_a_recording_is_drawn_with_its_readings_phases_limits_and_reasons(tmp_path: Path) -> None:
    picture = recording_picture(eventful(tmp_path, gpus=2))
    assert picture.title == "run.jsonl"
    assert picture.subtitle == "2 × Fake GPU 80  ·  node7  ·  2026-11-20 13:30 UTC  ·  39.0 s"
    charts = charts_of(picture)
    assert list(charts) == [
        "GPU utilisation",
        "Memory used",
        "Power",
        "Temperature",
        "SM clock",
        "Throttled",
    ]
    assert {name: chart.y.unit for name, chart in charts.items()}["Memory used"] == "B"
    assert series_of(charts["Power"])["GPU 1"].points == tuple((float(t), 300.0 + t % 7) for t in range(40))
    levels = {line.label: line.y for chart in charts.values() for line in chart.references}
    assert levels == {"limit 400 W": 400.0, "slowdown 87 °C": 87.0, "maximum 1,980 MHz": 1980.0}
    for chart in charts.values():
        assert [(shade.name, shade.begin, shade.end) for shade in chart.shades] == [
            ("load", 0.0, 10.0),
            ("train", 10.0, 39.0),
        ]
    (throttled,) = charts["Throttled"].series
    assert (throttled.name, throttled.points) == ("software thermal slowdown", ((21.0, 0.0), (21.0, 1.0)))
    assert throttled.ranges == ((21.0, 39.0), (21.0, 39.0))


def test_every_reason_that_is_no_state_has_a_colour_of_its_own() -> None:
    assert set(THROTTLE_FILLS) == set(get_args(ThrottleReason)) - STATE_REASONS
    assert len(set(THROTTLE_FILLS.values())) == len(THROTTLE_FILLS)


def test_events_are_marked_in_their_gpus_row_and_named_once(tmp_path: Path) -> None:
    def event(at_s: float, gpu: int, code: int | None) -> DriverEvent:
        return DriverEvent(
            monotonic_s=rec.MONOTONIC_S + at_s,
            physical_index=gpu,
            event="lost" if code is None else "xid",
            code=code,
            message="a fault",
        )

    samples = [rec.sample(t, {g: {"util_gpu_percent": 90.0} for g in (0, 1)}) for t in range(60)]
    events = [event(20, 0, 63), event(30, 0, 63), event(40, 1, 79), event(41, 1, None)]
    head = rec.header([rec.identity(0), rec.identity(1)])
    panel, strip = recording_picture(rec.loaded(tmp_path, [head, *samples, *events])).charts
    assert (strip.y.label, strip.y.names) == ("Driver events", ("GPU 0", "GPU 1"))
    assert {series.name: series.points for series in strip.series} == {
        "xid 63 (2×)": ((20.0, 0.0), (30.0, 0.0)),
        "xid 79": ((40.0, 1.0),),
        "lost": ((41.0, 1.0),),
    }
    assert [(line.label, line.x) for line in panel.references] == [("", at) for at in (20, 30, 40, 41)]


def test_many_gpus_over_a_long_time_are_quantiles_and_no_extremes(tmp_path: Path) -> None:
    """Of 1,500 readings of 0 to 99 one GPU has one of 1,000; the picture ends under it."""
    samples = [
        rec.sample(
            t, {g: {"power_w": 1000.0 if (t, g) == (700, 0) else float(t * 37 % 100)} for g in range(4)}
        )
        for t in range(1500)
    ]
    head = rec.header([rec.identity(g) for g in range(4)])
    picture = recording_picture(rec.loaded(tmp_path, [head, *samples]))
    assert "each line is a GPU's median" in picture.subtitle
    (power,) = picture.charts
    most, half, *medians = power.series
    assert (most.name, half.name) == tuple(
        f"the middle {share} of all GPUs' readings" for share in ("90 %", "half")
    )
    assert max(high for series in (most, half) for _, high in series.ranges) < 100
    assert [(series.name, len(series.points)) for series in medians] == [
        (f"GPU {g}", BAND_PIECES) for g in range(4)
    ]


def test_bands_leave_holes_open() -> None:
    found = bands(np.arange(4.0), [np.array([1.0, 3.0, np.nan, np.nan])], pieces=2, shares=(0.5,))
    assert found.levels[0, 0] == 2.0
    assert np.isnan(found.levels[0, 1])


def test_without_a_gpu_the_host_is_drawn_and_without_anything_it_is_said(tmp_path: Path) -> None:
    (cpu,) = recording_picture(eventful(tmp_path, gpus=0)).charts
    assert (cpu.y.label, cpu.y.unit, cpu.y.reach) == ("CPU busy", "%", (0.0, 100.0))
    assert cpu.series[0].points == tuple((float(t), 40.0) for t in range(40))
    empty = recording_picture(rec.loaded(tmp_path, [rec.header([rec.identity()])], name="empty.jsonl"))
    assert (empty.charts, empty.subtitle) == ((), "This recording has no readings to draw")


def test_a_limit_far_over_the_readings_is_not_drawn(tmp_path: Path) -> None:
    """80 GiB are installed and 8 in use: a line at 80 would flatten them."""
    memory = charts_of(recording_picture(eventful(tmp_path, gpus=1)))["Memory used"]
    assert memory.references == ()
    assert memory.series[0].points[0] == (0.0, 2.0**33)


def test_recordings_are_drawn_against_each_other(tmp_path: Path) -> None:
    a, b = (eventful(tmp_path, gpus=0, name=f"{name}.jsonl") for name in "ab")
    course, spread = comparison_picture(a, b, compare(a, b)).charts
    assert (course.y.label, spread.x.unit) == ("CPU busy", "%")
    assert [series.name for series in (*course.series, *spread.series)] == ["A  a.jsonl", "B  b.jsonl"] * 2
    a, b = (eventful(tmp_path, gpus=2, name=f"{name}.jsonl") for name in "ab")
    picture = comparison_picture(a, b, compare(a, b))
    charts = charts_of(picture)
    for name in ("Memory used", "GPU utilisation", "SM clock"):
        assert name in charts
    assert series_of(charts["Memory used"])["A  a.jsonl"].points[0] == (0.0, 1.5 * 2.0**33)
    power = picture.charts[5]
    readings = sorted(300.0 + t % 7 for t in range(40))
    assert power.series[0].points[0] == (0.0, readings[0])
    assert power.series[0].points[50] == (50.0, np.quantile(readings, 0.5))
    assert power.series[0].points[-1] == (100.0, readings[-1])


def test_memory_of_many_is_their_courses_and_a_row_each(tmp_path: Path) -> None:
    a, b = (eventful(tmp_path, gpus=2, name=f"{name}.jsonl") for name in "ab")
    course, rows = memory_picture([a, b, a, eventful(tmp_path, gpus=0, name="none.jsonl")]).charts
    assert [series.name for series in course.series] == [
        "a.jsonl (1)",
        "b.jsonl",
        "a.jsonl (3)",
        "none.jsonl",
    ]
    assert course.series[0].points[0] == (0.0, 3 * 2.0**33)
    assert rows.y.names[3] == "none.jsonl, not read"
    of_all = tuple((3 * 2.0**33, float(row)) for row in range(3))
    assert [(series.name, series.points) for series in rows.series] == [("mean", of_all), ("peak", of_all)]


def test_balance_has_a_bar_for_each_gpu_and_their_mean(tmp_path: Path) -> None:
    charts = charts_of(balance_picture(eventful(tmp_path, gpus=2)))
    memory = charts["Memory used"]
    assert memory.series[0].points == ((0.0, 2.0**33), (1.0, 2.0**34))
    assert (memory.x.names, memory.references[0].y) == (("0", "1"), 1.5 * 2.0**33)
    assert memory.title.startswith("poor, ")
