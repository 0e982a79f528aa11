"""A run over time: launches lie where they were, long pauses are cut, what is missing is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpu_run_by_hand import gpu_run, recorded
from gpuproof.campaign.conclude import read_evidence
from gpuproof.observe.recording_page import values_line
from gpuproof.observe.run_timeline import LONGEST_PAUSE_S, MOST_LAUNCHES, run_pictures
from gpuproof.readings.evidence import Evidence
from gpuproof.readings.recording import load_recording
from gpuproof.readings.series import envelope
from gpuproof.readings.summary import summarise
from gpuproof.records.page import Chart, Picture
from gpuproof.records.run import Start
from gpuproof.store.layout import recording_name
from records_by_hand import one_rank, write_run


def timeline(evidence: Evidence) -> Picture:
    picture = run_pictures(evidence)[0]
    assert isinstance(picture, Picture)
    return picture


def chart_of(picture: Picture, label: str) -> Chart:
    (chart,) = [chart for chart in picture.charts if chart.y.label == label]
    return chart


def test_steps_and_readings_share_an_axis_and_windows_are_where_they_were(tmp_path: Path) -> None:
    """The first window begins five seconds after its recording; a launch and its pause take 32 s."""
    picture = timeline(read_evidence(gpu_run(tmp_path, launches=2)))
    assert len({chart.x for chart in picture.charts}) == 1
    windows = [shade for shade in picture.charts[0].shades if shade.name.startswith("launch")]
    assert [round(shade.begin) for shade in windows] == [5, 37]
    assert [round(shade.end) for shade in windows] == [25, 57]
    steps = [x for series in chart_of(picture, "Step time").series for x, _ in series.points]
    assert min(steps) == pytest.approx(5.1, abs=0.05)
    power = chart_of(picture, "Power").series
    assert {series.name for series in power} == {"GPU 0", "GPU 1"}
    throttled = [shade for shade in picture.charts[0].shades if shade.name == "throttled"]
    begins = [shade.begin for shade in throttled]  # after two thirds of each window, at the next reading
    assert begins == pytest.approx([18.5, 50.5], abs=0.3)


def test_a_long_pause_between_launches_is_cut(tmp_path: Path) -> None:
    evidence = read_evidence(gpu_run(tmp_path, launches=2))
    first, second = evidence.launches
    later = tuple(replace(x, unix_s=x.unix_s + 86_400) if isinstance(x, Start) else x for x in second.records)
    picture = timeline(replace(evidence, launches=(first, replace(second, records=later))))
    (_, end) = picture.charts[0].x.reach
    assert end < 2 * 40 + LONGEST_PAUSE_S


def test_readings_that_are_missing_are_said(tmp_path: Path) -> None:
    run = gpu_run(tmp_path, launches=2)
    evidence = read_evidence(run)
    (run.case_folder(evidence.launches[1].case) / recording_name("node7")).unlink()
    picture = timeline(read_evidence(run))
    assert "no readings of launch 2" in picture.subtitle
    assert max(x for series in chart_of(picture, "Power").series for x, _ in series.points) < 35


def test_of_very_many_launches_nothing_is_drawn(tmp_path: Path) -> None:
    launches = [one_rank(replicate=n).records() for n in range(MOST_LAUNCHES + 1)]
    assert run_pictures(read_evidence(write_run(tmp_path, launches))) == ()


def test_how_steps_are_spread_counts_every_step(tmp_path: Path) -> None:
    times_s = [0.010] * 90 + [0.100] * 10
    (_, chart) = run_pictures(read_evidence(write_run(tmp_path, [one_rank(times_s=times_s).records()])))
    assert isinstance(chart, Chart)
    counts = [y for series in chart.series for _, y in series.points]
    assert (sum(counts), counts[0], counts[-1]) == (100, 90, 10)
    assert chart.x.is_logarithmic  # ten times the shortest


def test_each_middle_of_an_envelope_is_a_reading() -> None:
    shape = envelope(np.arange(4000.0), np.arange(4000.0) % 7, pieces=100)
    assert set(shape.levels[1].tolist()) <= set(range(7))


def test_the_line_of_figures_is_of_all_gpus_and_says_what_is_not_known(tmp_path: Path) -> None:
    recording = load_recording(recorded(tmp_path / "a.jsonl", gpus=2))
    line = values_line(summarise(recording))
    assert line.startswith("2 GPUs together: mean power 1,")
    assert "highest temperature 76 °C, throttled 28 % of the time (GPU 0, software thermal slowdown)" in line
    cold = replace(recording.devices[1], metrics={})
    line = values_line(summarise(replace(recording, devices=(recording.devices[0], cold))))
    assert "mean power –, energy –, highest temperature –" in line
    assert values_line(summarise(replace(recording, devices=()))) == "no GPU was read"
