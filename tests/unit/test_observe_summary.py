"""Summaries of recordings, with numbers worked out by hand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import recordings as rec
from concluding import figures_on
from gpuproof.base.errors import UsageError
from gpuproof.observe.recording_page import recording_page, recording_result
from gpuproof.readings import window
from gpuproof.readings.energy import Energy, energy_used, power_over_time
from gpuproof.readings.recording import RecordingData, load_recording
from gpuproof.readings.summary import summarise, summarise_window
from gpuproof.readings.totals import Throttling, throttling
from gpuproof.readings.warnings import load_balance
from gpuproof.records.metrics import names
from gpuproof.records.readings import DriverEvent, Sample, UnavailableMetrics
from gpuproof.records.result import Measure
from gpuproof.report.formats import FORMATS, ReportFormat, render

Figures = dict[tuple[str, str], Measure]
"""Metric and statistic → figure of the only GPU."""


def figures_of(recording: RecordingData, *, gpu: int = 0, phase: str | None = None) -> Figures:
    return {
        (measure.labels["metric"], measure.statistic): measure
        for measure in summarise(recording)
        if measure.labels.get("gpu") == gpu and measure.labels.get("phase") == phase
    }


def only_device(folder: Path, records: list[Any]) -> Figures:
    return figures_of(rec.loaded(folder, records))


def mean_of(figures: Figures, metric: str) -> float | None:
    return figures[metric, "mean"].value


def text_of(recording: RecordingData, *, with_balance: bool = False) -> str:
    return rec.text_of(recording_page(recording_result(recording, with_balance=with_balance)))


def energy_of(folder: Path, records: list[Any]) -> Energy:
    data = rec.loaded(folder, records)
    return energy_used(data, track=data.devices[0], window=window.whole(data))


def throttling_of(folder: Path, records: list[Any]) -> Throttling:
    data = rec.loaded(folder, records)
    return throttling(data, track=data.devices[0], window=window.whole(data))


def test_the_mean_is_weighted_by_time_and_a_hole_is_not_filled(tmp_path: Path) -> None:
    """Readings at 0, 1, 2 and 10 s: the one at 2 s stands for 1 s, not for the 8 s of the hole."""
    powers = {0.0: 100.0, 1.0: 200.0, 2.0: 300.0, 10.0: 100.0}
    samples = [rec.sample(t, {0: {"power_w": p}}) for t, p in powers.items()]
    found = only_device(tmp_path, [rec.header([rec.identity()]), *samples])
    mean, low, high, p95 = (found["power_w", name] for name in ("mean", "minimum", "maximum", "p95"))
    assert mean.value == pytest.approx((100 + 200 + 300 + 100) / 4)
    assert (low.value, high.value, mean.num_samples) == (100.0, 300.0, 4)
    assert p95.value is None
    assert p95.missing == "p95 needs at least 59 values (4 measured)"
    assert (mean.subject, mean.unit, mean.text) == ("host/node7/gpu/GPU-0000", "W", "175 W")


def test_unequal_steps_weigh_by_their_length(tmp_path: Path) -> None:
    """Standing for 1, 2 and 1.5 s (the usual interval): (100·1 + 200·2 + 400·1.5) / 4.5."""
    samples = [rec.sample(t, {0: {"power_w": p}}) for t, p in ((0.0, 100.0), (1.0, 200.0), (3.0, 400.0))]
    found = only_device(tmp_path, [rec.header([rec.identity()]), *samples])
    assert mean_of(found, "power_w") == pytest.approx(1100 / 4.5)


def test_readings_of_a_dithered_recording_weigh_by_the_time_around_them(tmp_path: Path) -> None:
    """Around 0, 1 and 3 s lie (1.5 + 1)/2, (1 + 2)/2 and (2 + 1.5)/2 s, 1.5 being usual: 4.5 s in all."""
    samples = [rec.sample(t, {0: {"power_w": p}}) for t, p in ((0.0, 100.0), (1.0, 200.0), (3.0, 400.0))]
    head = rec.header([rec.identity()], dither_seed=1)
    expected = (100 * 1.25 + 200 * 1.5 + 400 * 1.75) / 4.5
    assert mean_of(only_device(tmp_path, [head, *samples]), "power_w") == pytest.approx(expected)


def test_mean_power_is_the_counters_where_it_moves(tmp_path: Path) -> None:
    """The sensor says 100 W throughout, the counter 300 J in 2 s and 450 J in 1 s: 250 W."""
    joules = {0.0: 0.0, 1.0: None, 2.0: 300.0, 3.0: 750.0}
    samples = [
        rec.sample(t, {0: {"power_w": 100.0, **({} if e is None else {"energy_j": e})}})
        for t, e in joules.items()
    ]
    found = only_device(tmp_path, [rec.header([rec.identity()]), *samples])
    assert mean_of(found, "power_w") == pytest.approx(250.0)
    assert found["power_w", "maximum"].value == 100.0


@pytest.mark.parametrize(("joules", "title"), [(250.0, "power (mean: energy counter)"), (100.0, "power ")])
def test_a_mean_outside_of_the_readings_says_where_it_comes_from(
    joules: float, title: str, tmp_path: Path
) -> None:
    samples = [rec.sample(t, {0: {"power_w": 100.0, "energy_j": joules * t}}) for t in range(4)]
    text = text_of(rec.loaded(tmp_path, [rec.header([rec.identity()]), *samples]))
    (row,) = [line for line in text.splitlines() if line.startswith("  power ")]
    assert row.startswith(f"  {title}")
    assert ("counter" in row) == ("counter" in title)


def test_a_counter_that_stands_still_does_not_say_what_power_was(tmp_path: Path) -> None:
    samples = [rec.sample(t, {0: {"power_w": 100.0, "energy_j": 5.0}}) for t in range(4)]
    assert mean_of(only_device(tmp_path, [rec.header([rec.identity()]), *samples]), "power_w") == 100.0


@pytest.mark.parametrize("form", FORMATS)
def test_every_figure_of_the_page_is_among_the_measures(tmp_path: Path, form: ReportFormat) -> None:
    result = recording_result(load_recording(eventful(tmp_path)), with_balance=True)
    page = recording_page(result)
    shown = figures_on(page)
    assert len(shown) > 40
    assert all(measure in result.measures for measure in shown)
    read = set(map(id, shown))
    left_out = [measure for measure in result.measures if id(measure) not in read]
    assert {(m.name, m.missing) for m in left_out} == {("fan", "not supported by this device")}
    text = render(result, page, form)
    assert ("power,400.0,W,400 W" if form == "csv" else "22.8 kJ (6.33 Wh)") in text or form == "junit"


def test_what_was_not_read_is_none_with_its_reason_and_never_zero(tmp_path: Path) -> None:
    who = rec.identity(unavailable={"fan_percent": "not supported by this device"})
    samples = [rec.sample(t, {0: {"power_w": 50.0}} if t < 6 else {}) for t in range(10)]
    lost = UnavailableMetrics(
        monotonic_s=rec.MONOTONIC_S + 6, physical_index=0, reasons={"power_w": "the device is lost"}
    )
    found = only_device(tmp_path, [rec.header([who]), *samples[:6], lost, *samples[6:]])
    fan = found["fan_percent", "mean"]
    assert found["power_w", "mean"].detail == "the device is lost (40 % of the readings)"
    assert (fan.value, fan.num_samples, fan.missing) == (None, 0, "not supported by this device")
    assert found["energy_j", "total"].value == pytest.approx(250.0)
    held = found["held_back", "share of the time"]
    assert (held.value, held.text, held.missing) == (None, "–", "this device reported no throttle reasons")


def test_slow_readings_are_not_missing_between_their_ticks(tmp_path: Path) -> None:
    samples = [
        rec.sample(t, {0: {"power_w": 50.0, **({"pcie_gen": 5.0} if t % 5 == 0 else {})}}) for t in range(21)
    ]
    pcie = only_device(tmp_path, [rec.header([rec.identity()]), *samples])["pcie_gen", "mean"]
    assert (pcie.num_samples, pcie.detail, pcie.missing) == (5, "", None)


def test_energy_is_the_counters_difference_where_there_is_one(tmp_path: Path) -> None:
    """The counters span −1 to 11 s and say 3,000 J; the samples' 250 W over 10 s agree with it."""
    samples = [rec.sample(t, {0: {"power_w": 250.0}}) for t in range(11)]
    energy = energy_of(
        tmp_path,
        [
            rec.header([rec.identity()]),
            rec.counters(-1, "start", {0: {"energy_j": 5000.0}}),
            *samples,
            rec.counters(11, "end", {0: {"energy_j": 8000.0}}),
        ],
    )
    assert energy.method == "counter"
    assert energy.energy_j == 3000.0
    assert energy.coverage == 1.0
    assert energy.note is None


def test_energy_falls_back_on_power_where_the_counter_stands_still(tmp_path: Path) -> None:
    """Trapezoids of 100, 200, 300 W at 0, 1, 2 s: 150 + 250 J."""
    samples = [rec.sample(t, {0: {"power_w": 100.0 * (t + 1), "energy_j": 7.0}}) for t in range(3)]
    energy = energy_of(tmp_path, [rec.header([rec.identity()]), *samples])
    assert (energy.method, energy.energy_j, energy.coverage) == ("integrated_power", 400.0, 1.0)
    assert energy.note == "the energy counter did not move while power was drawn"


def test_a_hole_in_power_lowers_the_coverage_and_is_not_guessed(tmp_path: Path) -> None:
    """Readings at 0–4 and 6–10… with 5 to 15 s missing: 4 + 5 s of 20 s are covered."""
    samples = [rec.sample(t, {0: {"power_w": 100.0}} if t < 5 or t > 14 else {}) for t in range(21)]
    energy = energy_of(tmp_path, [rec.header([rec.identity()]), *samples])
    assert energy.energy_j == pytest.approx(100.0 * (4 + 5))
    assert energy.coverage == pytest.approx(9 / 20)


def test_a_counter_that_disagrees_with_the_sensor_is_named(tmp_path: Path) -> None:
    samples = [rec.sample(t, {0: {"power_w": 100.0, "energy_j": 400.0 * t}}) for t in range(5)]
    note = energy_of(tmp_path, [rec.header([rec.identity()]), *samples]).note
    assert note == "the counter shows 400 W on average, the power sensor 100 W"


def test_a_counter_reset_by_a_driver_reload_is_summed_around(tmp_path: Path) -> None:
    """10 → 30 J, reload, 5 → 25 J: 40 J over two of three seconds."""
    totals = (10.0, 30.0, 5.0, 25.0)
    samples = [rec.sample(t, {0: {"energy_j": total}}) for t, total in enumerate(totals)]
    energy = energy_of(tmp_path, [rec.header([rec.identity()]), *samples])
    assert (energy.energy_j, energy.covered_s) == (40.0, 2.0)
    assert energy.coverage == pytest.approx(2 / 3)
    assert energy.note is not None
    assert "went backwards 1 time(s)" in energy.note


@pytest.mark.parametrize(("duration_s", "expected_w"), [(0.4, None), (0.9, None), (5.0, 120.0)])
def test_a_counter_that_moved_too_seldom_tells_no_energy(
    tmp_path: Path, duration_s: float, expected_w: float | None
) -> None:
    """An H200 counts each 0.1 s; by readings each 0.03 s a window of 0.08 s once had 18 W of 120 W."""
    samples = [
        rec.sample(i * 0.03, {0: {"power_w": 80.0, "energy_j": 12.0 * (i * 0.03 // 0.1)}}) for i in range(200)
    ]
    data = rec.loaded(tmp_path, [rec.header([rec.identity()], fast_interval_s=0.03), *samples])
    between = window.between(
        data, begin_monotonic_s=rec.MONOTONIC_S + 0.5, end_monotonic_s=rec.MONOTONIC_S + 0.5 + duration_s
    )
    energy = energy_used(data, track=data.devices[0], window=between)
    if expected_w is None:
        assert energy.energy_j is None
        assert energy.note is not None
        assert "but 10 are needed" in energy.note
    else:
        assert energy.energy_j is not None
        assert energy.energy_j / energy.covered_s == pytest.approx(expected_w, rel=0.03)


@pytest.mark.parametrize("is_stuck", [True, False], ids=["stuck", "lost"])
@pytest.mark.parametrize(
    ("begin_s", "method", "energy_j"),
    [(1.0, "counter", 8 * 120.0), (8.0, "integrated_power", 8 * 100.0), (12.0, "integrated_power", 800.0)],
    ids=["before", "across", "after"],
)
def test_a_counter_that_stops_leaves_windows_after_it_to_the_power_sensor(
    tmp_path: Path, is_stuck: bool, begin_s: float, method: str, energy_j: float
) -> None:
    """120 W by the counter until 11 s, 100 W by the sensor all the time; windows of 8 s."""
    last = {"energy_j": 1320.0} if is_stuck else {}
    samples = [
        rec.sample(t / 4, {0: {"power_w": 100.0, **({"energy_j": 30.0 * t} if t <= 44 else last)}})
        for t in range(100)
    ]
    data = rec.loaded(tmp_path, [rec.header([rec.identity()], fast_interval_s=0.25), *samples])
    begin = rec.MONOTONIC_S + begin_s
    inside = window.between(data, begin_monotonic_s=begin, end_monotonic_s=begin + 8.0)
    energy = energy_used(data, track=data.devices[0], window=inside)
    assert (energy.method, energy.coverage) == (method, 1.0)
    assert energy.energy_j == pytest.approx(energy_j)
    assert (energy.note is None) == (method == "counter")
    power = power_over_time(data, track=data.devices[0], inside=inside.holds(data.time_s))
    assert power is not None
    assert power.mean_w == pytest.approx(120.0 if method == "counter" else 100.0)


@pytest.mark.parametrize(
    ("until_s", "note"), [(14.0, "only over 25 % of the window"), (0.0, "fewer than two power readings")]
)
def test_a_counter_that_stops_is_not_replaced_by_power_of_part_of_the_window(
    tmp_path: Path, until_s: float, note: str
) -> None:
    samples = [
        rec.sample(
            t / 4,
            {0: {"energy_j": min(30.0 * t, 1320.0), **({"power_w": 100.0} if t / 4 <= until_s else {})}},
        )
        for t in range(100)
    ]
    data = rec.loaded(tmp_path, [rec.header([rec.identity()], fast_interval_s=0.25), *samples])
    begin = rec.MONOTONIC_S + 12.0
    inside = window.between(data, begin_monotonic_s=begin, end_monotonic_s=begin + 8.0)
    energy = energy_used(data, track=data.devices[0], window=inside)
    assert energy.energy_j is None
    assert energy.note is not None
    assert energy.note.startswith("the energy counter does not move after 11")
    assert energy.note.endswith(note)


def test_without_power_or_counter_there_is_no_energy(tmp_path: Path) -> None:
    samples = [rec.sample(t, {0: {"temp_gpu_c": 40.0}}) for t in range(3)]
    energy = energy_of(tmp_path, [rec.header([rec.identity()]), *samples])
    assert (energy.energy_j, energy.method, energy.coverage) == (None, None, None)
    assert energy.note == "no energy counter: fewer than two readings of it; fewer than two power readings"


def test_throttling_takes_counters_over_samples(tmp_path: Path) -> None:
    """41 s of 100 s by the counter, though no sample saw it; power cap in 25 of 100 samples."""
    samples = [
        rec.sample(t, {0: {"power_w": 1.0}}, reasons={0: ("power_cap",) if t < 25 else ()})
        for t in range(100)
    ]
    held = throttling_of(
        tmp_path,
        [
            rec.header([rec.identity()]),
            rec.counters(0, "start", {0: {"throttle_time_thermal_software_s": 2.0}}),
            *samples,
            rec.counters(100, "end", {0: {"throttle_time_thermal_software_s": 43.0}}),
        ],
    )
    thermal, cap = held.shares
    assert (thermal.reason, thermal.method) == ("thermal_software", "counter")
    assert thermal.share == pytest.approx(0.41)
    assert (cap.reason, cap.method) == ("power_cap", "samples")
    assert cap.share == pytest.approx(0.25)


def test_told_nothing_is_not_never_throttled(tmp_path: Path) -> None:
    told = [rec.sample(t, {0: {"power_w": 1.0}}, reasons={0: ()}) for t in range(3)]
    silent = [rec.sample(t, {0: {"power_w": 1.0}}) for t in range(3)]
    head = rec.header([rec.identity()])
    assert throttling_of(tmp_path, [head, *told]).has_answers
    assert not throttling_of(tmp_path, [head, *silent]).has_answers


def phased(tmp_path: Path) -> list[Any]:
    """Two devices: load until 4 s, train until 8, load again until 10; train draws 300 W, the rest 100 W."""

    def power(t: int) -> float:
        return 300.0 if 4 <= t < 8 else 100.0

    samples = [
        rec.sample(t, {i: {"power_w": power(t) + i, "util_gpu_percent": 90.0 - 30 * i} for i in (0, 1)})
        for t in range(11)
    ]
    return [
        rec.header([rec.identity(0), rec.identity(1)]),
        rec.mark(0, phase="load"),
        *samples[:4],
        rec.mark(4, phase="train"),
        *samples[4:8],
        rec.mark(8, phase="load"),
        *samples[8:],
    ]


def test_phases_of_one_name_are_joined(tmp_path: Path) -> None:
    recording = rec.loaded(tmp_path, phased(tmp_path))
    load, train = (figures_of(recording, phase=name) for name in ("load", "train"))
    times = [phase["duration_s", "total"] for phase in (load, train)]
    assert [time.value for time in times] == [6.0, 4.0]
    assert mean_of(train, "power_w") == pytest.approx(300.0)  # the sample at 8 s belongs to what follows
    assert sum(time.num_samples or 0 for time in times) == 11


def test_an_unknown_phase_is_answered_with_those_there_are(tmp_path: Path) -> None:
    recording = rec.loaded(tmp_path, phased(tmp_path))
    with pytest.raises(UsageError, match=r"run\.jsonl: no phase 'eval' in this recording\. .*load, train"):
        window.phase(recording, name="eval")


def test_a_cases_window_is_cut_out_by_the_monotonic_clock(tmp_path: Path) -> None:
    recording = rec.loaded(tmp_path, phased(tmp_path))
    cut = window.between(recording, begin_monotonic_s=1004.0, end_monotonic_s=1007.0)
    (power,) = [
        measure
        for measure in summarise_window(recording, window=cut)
        if measure.labels == {"metric": "power_w", "gpu": 1} and measure.statistic == "mean"
    ]
    assert (cut.duration_s, power.num_samples) == (3.0, 3)
    assert power.value == pytest.approx(301.0)


def test_load_balance_names_the_gpu_furthest_off(tmp_path: Path) -> None:
    """Utilisation 90 and 60 %: mean 75, standard deviation 21.2, so 28.3 %: poor."""
    recording = rec.loaded(tmp_path, phased(tmp_path))
    util, memory, power = load_balance(summarise(recording))
    assert util.value == pytest.approx(0.282843, rel=1e-5)
    assert [measure.detail.partition(",")[0] for measure in (util, power)] == ["poor", "excellent"]
    assert (memory.value, memory.missing) == (None, "not read on GPU 0, 1")
    lines = text_of(recording, with_balance=True).splitlines()[-3:]
    assert lines[0].startswith("  GPU utilisation  varies by 28.3 %  poor, over 2 GPUs; furthest off: GPU ")
    assert lines[1].split() == ["memory", "used", "–", "not", "read", "on", "GPU", "0,", "1"]


def test_one_gpu_has_nothing_to_balance(tmp_path: Path) -> None:
    recording = rec.loaded(tmp_path, [rec.header([rec.identity()]), rec.sample(0, {0: {"power_w": 1.0}})])
    assert {b.missing for b in load_balance(summarise(recording))} == {"1 GPU: nothing to balance"}


def test_an_empty_recording_is_summarised_without_inventing_anything(tmp_path: Path) -> None:
    recording = rec.loaded(tmp_path, [rec.header([rec.identity()])])
    valued = {(m.name, m.value) for m in summarise(recording) if m.value is not None}
    assert valued == {("recorded", 0.0), ("samples", 0.0)}
    assert "recorded on node7, –" in text_of(recording)


def test_without_a_gpu_the_host_is_summarised(tmp_path: Path) -> None:
    samples = [rec.sample(t, {}, host={"cpu_percent": 50.0}) for t in range(3)]
    text = text_of(rec.loaded(tmp_path, [rec.header([]), *samples]))
    assert "No GPU was found" in text
    assert "50.0 %" in text


def hot_minute(t: int) -> Sample:
    """Give the reading at `t` seconds: power is lost from 31 s on, heat slows the clock from 36 s on."""
    return rec.sample(
        t,
        {
            0: {
                "util_gpu_percent": 98.0,
                "mem_used_bytes": 40.0 * rec.GIB,
                "temp_gpu_c": 70.0 + t / 4,
                "clock_sm_mhz": 1410.0 if t >= 36 else 1980.0,
                **({"power_w": 400.0} if t < 31 else {}),
            }
        },
        reasons={0: ("thermal_software",) if t >= 36 else ()},
        host={"cpu_percent": 25.0, "net_rx_bytes": 2.0**20 * t},
    )


def eventful(tmp_path: Path) -> Path:
    """One minute with everything in it: throttling, an XID, ECC errors, a metric lost on the way."""
    samples = [hot_minute(t) for t in range(61)]
    who = rec.identity(unavailable={"fan_percent": "not supported by this device"})
    errors = ("ecc_corrected_count", "pcie_rx_bytes")
    totals = {"energy_j": 22_900.0, "ecc_corrected_count": 3.0, "pcie_rx_bytes": 60.0 * 2**20}
    return rec.write(
        tmp_path / "gpu_stats_demo_20261120_133000.jsonl",
        [
            rec.header([who]),
            rec.counters(0, "start", {0: {"energy_j": 100.0, **dict.fromkeys(errors, 0.0)}}),
            rec.mark(0, phase="warmup"),
            *samples[:11],
            rec.mark(10.5, phase="train"),
            *samples[11:31],
            UnavailableMetrics(
                monotonic_s=rec.MONOTONIC_S + 31,
                physical_index=0,
                reasons={"power_w": "driver call timed out"},
            ),
            *samples[31:],
            DriverEvent(
                monotonic_s=rec.MONOTONIC_S + 40,
                physical_index=0,
                event="xid",
                code=63,
                message="a row was remapped",
            ),
            rec.counters(60, "end", {0: totals}),
            rec.end(60, samples=61),
        ],
    )


def test_the_text_of_a_summary(tmp_path: Path) -> None:
    expected = (Path(__file__).parents[1] / "golden/observe_summary.txt").read_text(encoding="utf-8")
    assert text_of(load_recording(eventful(tmp_path))) == expected


def test_a_counter_or_reason_that_was_refused_later_is_explained_in_the_drivers_words(tmp_path: Path) -> None:
    samples = [rec.sample(float(t), {0: {"temp_gpu_c": 50.0}}) for t in range(3)]
    refused = UnavailableMetrics(
        monotonic_s=0.5,
        physical_index=0,
        reasons={"energy_j": "not on this board", "throttle_reasons": "not for an instance"},
    )
    found = only_device(tmp_path, [rec.header([rec.identity()]), *samples, refused])
    energy, held = found["energy_j", "total"], found["held_back", "share of the time"]
    assert energy.missing == "no energy counter: not on this board; fewer than two power readings"
    assert held.missing == "not for an instance"


def test_no_line_ends_between_a_figure_and_its_unit(tmp_path: Path) -> None:
    samples = [rec.sample(float(t), {0: {"power_w": 300.0}}) for t in range(3)]
    reason = ", ".join(f"seen in {number * 7} ms" for number in range(1, 60))
    identity = rec.identity(unavailable={"fan_percent": reason})
    path = rec.write(tmp_path / "r.jsonl", [rec.header([identity]), *samples])
    lines = text_of(load_recording(path)).splitlines()
    told = [line for line in lines if "seen in" in line]
    assert len(told) > 5
    assert not any(line[-1].isdigit() for line in told)


def test_a_long_label_keeps_its_distance_and_a_long_list_is_wrapped(tmp_path: Path) -> None:
    samples = [rec.sample(float(t), {0: {"ecc_uncorrected_count": 0.0}}) for t in range(3)]
    identity = rec.identity(unavailable=dict.fromkeys(names(kind="gauge"), "not on this board"))
    path = rec.write(tmp_path / "r.jsonl", [rec.header([identity]), *samples])
    text = text_of(load_recording(path))
    assert re.search(r"\n  ECC uncorrected errors +0\n", text)
    assert max(map(len, text.splitlines())) <= 110
    assert " ".join(text.split()).count("not on this board") == 1
