"""Pictures: what is drawn, how it is reduced, and what is said where nothing can be drawn."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import recordings as rec
from gpuproof import plotting
from gpuproof.analysis.comparing.recordings import compare
from gpuproof.errors import EnvironmentUnfitError, UsageError
from gpuproof.observe import plots
from gpuproof.observe.plots import plot_recording
from gpuproof.observe.plots_compare import plot_balance, plot_comparison, plot_memory
from gpuproof.observe.plots_strip import THROTTLE_FILLS, held
from gpuproof.readings.metric_text import STATE_REASONS
from gpuproof.readings.recording import RecordingData
from gpuproof.readings.series import bands, envelope
from gpuproof.records.readings import DriverEvent, ThrottleReason

PNG = b"\x89PNG\r\n\x1a\n"


def test_the_envelope_keeps_every_extreme() -> None:
    """Ten seconds a piece: the one spike of 1,000 in piece 3 is its highest, and 99 its mean."""
    times = np.arange(100.0)
    column = np.zeros(100)
    column[37] = 990.0
    shape = envelope(times, column, pieces=10)
    assert shape.reduced
    assert shape.high.tolist() == [0, 0, 0, 990, 0, 0, 0, 0, 0, 0]
    assert shape.low.tolist() == [0] * 10
    assert shape.mean[3] == pytest.approx(99.0)


@pytest.mark.parametrize("pieces", [10, 1000])
def test_a_hole_stays_a_hole(pieces: int) -> None:
    times = np.arange(200.0)
    column = np.where((times >= 60) & (times < 140), np.nan, 5.0)
    shape = envelope(times, column, pieces=pieces)
    inside = (shape.time_s > 80) & (shape.time_s <= 140)
    assert inside.any()
    assert np.isnan(shape.mean[inside][:-1]).all() or np.isnan(shape.mean[inside]).sum() == 1
    assert np.nanmax(shape.high) == np.nanmin(shape.low) == 5.0


def test_slow_readings_are_a_line_and_not_dots() -> None:
    """A reading each fifth tick is its usual step, not a hole."""
    times = np.arange(50.0)
    shape = envelope(times, np.where(times % 5 == 0, 1.0, np.nan), pieces=100)
    assert shape.time_s.tolist() == list(range(0, 50, 5))
    assert not np.isnan(shape.mean).any()


def test_stretches_of_throttling_are_joined_to_what_can_be_seen() -> None:
    times = np.arange(10.0)
    flags = np.isin(times, (2, 3, 7))
    assert list(held(times, flags)) == [(2.0, 4.0), (7.0, 8.0)]
    assert list(held(times, np.zeros(10, dtype=bool))) == []
    day = np.arange(86_400.0)
    flicker = day % 2 == 0
    assert len(list(held(day, flicker))) == 1


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


def texts(figure: Any) -> str:
    found = [text.get_text() for text in figure.texts]
    for axes in figure.axes:
        found += [axes.get_title(loc="left"), *(text.get_text() for text in axes.texts)]
        legend = axes.get_legend()
        found += [] if legend is None else [text.get_text() for text in legend.get_texts()]
    found += [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return "\n".join(found)


def test_a_recording_is_drawn_with_its_phases_limits_and_reasons(tmp_path: Path) -> None:
    figure = plots._draw(eventful(tmp_path, gpus=2))
    said = texts(figure)
    for expected in (
        "run.jsonl",
        "2 × Fake GPU 80  ·  node7  ·  2026-11-20 13:30 UTC  ·  39.0 s",
        "GPU utilisation (%)",
        "Memory used (GiB)",
        "Power (W)",
        "limit\n400",
        "Temperature (°C)",
        "slowdown\n87",
        "SM clock (MHz)",
        "software thermal slowdown",
        "load",
        "train",
        "GPU 1",
    ):
        assert expected in said
    power = figure.axes[2].get_lines()[0]
    assert np.asarray(power.get_ydata()).tolist() == [300.0 + t % 7 for t in range(40)]


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
    figure = plots._draw(rec.loaded(tmp_path, [head, *samples, *events]))
    panel, strip = figure.axes
    assert strip.get_title(loc="left") == "Driver events"
    assert all(name in texts(figure) for name in ("xid 63 (2×)", "xid 79", "lost"))
    drawn = {str(line.get_label()): np.asarray(line.get_xydata()).tolist() for line in strip.get_lines()}
    assert sorted(drawn.values()) == [[[20.0, 0.0], [30.0, 0.0]], [[40.0, 1.0]], [[41.0, 1.0]]]
    assert [np.asarray(line.get_xdata())[0] for line in panel.get_lines() if line.get_linewidth() == 0.7] == [
        20,
        30,
        40,
        41,
    ]


def test_many_gpus_over_a_long_time_are_quantiles_and_no_extremes(tmp_path: Path) -> None:
    """Of 1,500 readings of 0 to 99 one GPU has one of 1,000; the picture ends under it."""
    samples = [
        rec.sample(
            t, {g: {"power_w": 1000.0 if (t, g) == (700, 0) else float(t * 37 % 100)} for g in range(4)}
        )
        for t in range(1500)
    ]
    figure = plots._draw(rec.loaded(tmp_path, [rec.header([rec.identity(g) for g in range(4)]), *samples]))
    (power,) = figure.axes
    assert "middle 90 %" in power.get_title(loc="right")
    assert power.get_ylim()[1] < 150
    assert len(power.collections) == 2
    assert [np.asarray(line.get_xdata()).size for line in power.get_lines()] == [plots.BAND_PIECES] * 4


def test_bands_leave_holes_open() -> None:
    found = bands(np.arange(4.0), [np.array([1.0, 3.0, np.nan, np.nan])], pieces=2, shares=(0.5,))
    assert found.levels[0, 0] == 2.0
    assert np.isnan(found.levels[0, 1])


def test_without_a_gpu_the_host_is_drawn_and_without_anything_it_is_said(tmp_path: Path) -> None:
    assert "Host CPU (%)" in texts(plots._draw(eventful(tmp_path, gpus=0)))
    empty = rec.loaded(tmp_path, [rec.header([rec.identity()])], name="empty.jsonl")
    assert "holds no readings to draw" in texts(plots._draw(empty))


def test_hosts_without_a_gpu_are_drawn_against_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(plotting, "save", lambda figure, _path: figures.append(figure))
    a, b = (eventful(tmp_path, gpus=0, name=f"{name}.jsonl") for name in "ab")
    plot_comparison(a, b, compare(a, b), tmp_path / "compared.png")
    assert "CPU busy (%)" in texts(figures[0])
    a, b = (eventful(tmp_path, gpus=2, name=f"{name}.jsonl") for name in "ab")
    plot_comparison(a, b, compare(a, b), tmp_path / "compared.png")
    for name in ("Memory used (GiB)", "GPU utilisation (%)", "SM clock (MHz)"):
        assert name in texts(figures[1])


def test_every_picture_is_written_whole(tmp_path: Path) -> None:
    a, b = (eventful(tmp_path, gpus=2, name=f"{name}.jsonl") for name in "ab")
    plot_recording(a, tmp_path / "new" / "a.png")
    plot_comparison(a, b, compare(a, b), tmp_path / "compared.png")
    plot_memory([a, b, eventful(tmp_path, gpus=0, name="none.jsonl")], tmp_path / "memory.png")
    plot_balance(a, tmp_path / "balance.png")
    for name in ("new/a.png", "compared.png", "memory.png", "balance.png"):
        assert (tmp_path / name).read_bytes().startswith(PNG)
    assert not list(tmp_path.rglob(".*partial*"))


def test_a_suffix_that_is_no_picture_is_an_error_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"run\.xyz: is no picture that can be drawn\. End its name in \.png"
    ):
        plot_recording(eventful(tmp_path, gpus=1), tmp_path / "run.xyz")


def test_without_matplotlib_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(EnvironmentUnfitError, match=r"pip install 'gpuproof\[monitor\]'"):
        plot_recording(eventful(tmp_path, gpus=1), tmp_path / "run.png")
