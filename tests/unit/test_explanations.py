"""A launch and the readings beside it: the slow device is named with its reason, the figures doubted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import recordings as r
from concluding import detail_of, doubt_of, lines_of, measure_of, table_of
from gpuproof.campaign.conclude import Concluded, conclude
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Device, HostLoad
from gpuproof.records.work.window import MonitorSpec
from gpuproof.suites.recipe.conclude import RecipeDetail
from gpuproof.suites.sections import Common
from records_by_hand import (
    ALONE,
    CPU,
    QUIET,
    Story,
    case,
    lasting,
    one_rank,
    setup,
    steady_times,
    window,
    write_run,
)

DURING = "Host and devices during the run"
NUM_SAMPLES = 101
"""Ten a second over a window of ten seconds, both ends read."""


def gpu(rank: int) -> Device:
    return Device(
        kind="cuda", index=rank, name="Fake GPU 80", uuid=f"GPU-{rank:04d}", memory_total_bytes=80 * r.GIB
    )


def four_ranks(*, longer_s: float = 0.0) -> CaseRecords:
    """Independent ranks, 1,000 samples each; rank 3 needs 10 s for what the others do in 8.2 s."""
    windows = [window(rank, host="node7", begin_monotonic_s=r.MONOTONIC_S) for rank in range(4)]
    windows = [
        replace(lasting(w, taken_s + longer_s), steps_s=taken_s, clock="device_event")
        for w, taken_s in zip(windows, (8.2, 8.2, 8.2, 10.0), strict=True)
    ]
    launched = replace(case(nproc=4, kind="inference"), monitor=MonitorSpec(interval_s=0.1))
    setups = [setup(rank, device=gpu(rank)) for rank in range(4)]
    return Story(windows=windows, setups=setups, times_s=[0.1] * 100, case=launched).records()


def recording_of_a_hot_gpu() -> list[object]:
    """GPU 3 falls from 1,980 to 600 MHz for 41 of 101 readings; each GPU takes 300 W."""
    records: list[object] = [r.header([r.identity(i) for i in range(5)], fast_interval_s=0.1)]
    for tick in range(NUM_SAMPLES):
        hot = tick < 41
        values = {
            i: {"util_gpu_percent": 99.0, "power_w": 300.0, "clock_sm_mhz": 1980.0, "temp_gpu_c": 60.0}
            for i in range(5)
        }
        values[3] |= {"clock_sm_mhz": 600.0, "temp_gpu_c": 88.0} if hot else {}
        told: dict[int, tuple[str, ...]] = dict.fromkeys(range(5), ())
        told[3] = ("thermal_software",) if hot else ()
        records.append(r.sample(tick / 10, values, reasons=told, host={"cpu_percent": 20.0}))
    return [*records, r.end(10.0, samples=NUM_SAMPLES)]


def concluded(folder: Path, launch: CaseRecords, recording: list[object] | None) -> Concluded:
    run = write_run(folder, [launch])
    if recording is not None:
        r.write(run.case_folder(launch.case) / "monitor-node7.jsonl", recording)
    return conclude(run)


def common_of(report: Concluded) -> Common:
    return detail_of(RecipeDetail, report).common


def test_the_hot_device_is_named_with_its_lag_its_reason_and_its_clock(tmp_path: Path) -> None:
    report = concluded(tmp_path, four_ranks(), recording_of_a_hot_gpu())
    # Rates 100, 100, 100 and 81.97 samples/s: the last is 18.03 % under the median.
    # Mean clock over the window: 0.41 · 600 + 0.59 · 1980 = 1,414 MHz.
    (remark,) = common_of(report).remarks
    sentence = remark.text
    assert sentence.startswith("GPU 3: −18 %: software thermal slowdown in 41 % of the window")
    assert "SM clock 1,980 → 1,4" in sentence
    assert "up to 88 °C" in sentence
    assert lines_of(report, DURING) == [
        f"launch 1: {sentence}",
        "readings cover all of each window",
    ]
    doubt = doubt_of(report, "device-fault")
    assert doubt.validity == "SUSPECT"
    assert doubt.reason == f"{sentence} (launch 1)"
    assert report.result.validity == "SUSPECT"


def test_devices_that_the_launch_did_not_use_are_left_out(tmp_path: Path) -> None:
    report = concluded(tmp_path, four_ranks(), recording_of_a_hot_gpu())
    rows = table_of(report, DURING)
    assert [row["device"].text for row in rows] == [f"GPU {i} Fake GPU 80" for i in range(4)]
    assert {row["power"].text for row in rows} == {"300 W"}
    assert [row["max temp"].text for row in rows] == ["60 °C", "60 °C", "60 °C", "88 °C"]


def test_energy_is_that_of_the_devices_of_the_launch(tmp_path: Path) -> None:
    report = concluded(tmp_path, four_ranks(), recording_of_a_hot_gpu())
    # 4 GPUs · 300 W · 10 s = 12,000 J over 4 · 1,000 samples.
    measure = measure_of(report, "energy")
    assert measure.value == pytest.approx(3.0)
    assert "power integrated" in measure.detail


def two_launches(folder: Path, *, power_w: float, second_is_read: bool) -> Concluded:
    """Two launches of four ranks; in the second the devices take `power_w`."""
    launches = [four_ranks(), four_ranks(longer_s=1e-9)]
    launches[1] = replace(launches[1], case=replace(launches[1].case, replicate=1))
    run = write_run(folder, launches, run={"repeats": 2})
    for launch, watts in zip(launches[: 1 + second_is_read], (300.0, power_w), strict=False):
        header = r.header([r.identity(i) for i in range(4)], fast_interval_s=0.1)
        ticks = range(NUM_SAMPLES)
        samples = [r.sample(tick / 10, {i: {"power_w": watts} for i in range(4)}) for tick in ticks]
        records = [header, *samples, r.end(10.0, samples=NUM_SAMPLES)]
        r.write(run.case_folder(launch.case) / "monitor-node7.jsonl", records)
    return conclude(run)


def test_energy_is_that_of_all_launches(tmp_path: Path) -> None:
    # 12,000 J and 20,000 J over twice 4,000 samples; the first launch alone would be 3 J a sample.
    measure = measure_of(two_launches(tmp_path, power_w=500.0, second_is_read=True), "energy")
    assert measure.value == pytest.approx(4.0)
    assert measure.detail.startswith("all 2 launches, 3.00 to 5.00 J/samples each, over 4 GPU(s), from power")


def test_energy_of_one_launch_is_not_that_of_the_run(tmp_path: Path) -> None:
    measure = measure_of(two_launches(tmp_path, power_w=300.0, second_is_read=False), "energy")
    assert measure.value is None
    assert str(measure.missing).startswith("known for 1 of 2 launches: launch 2: no energy: not every device")


@pytest.mark.parametrize("recording", [None, ["garbage"]])
def test_missing_readings_are_said_and_take_nothing_with_them(
    recording: list[object] | None, tmp_path: Path
) -> None:
    launch = four_ranks()
    run = write_run(tmp_path, [launch])
    if recording is not None:
        (run.case_folder(launch.case) / "monitor-node7.jsonl").write_text("garbage\n")
    report = conclude(run)
    assert report.result.measures[0].value == pytest.approx(4000 / 10)
    assert "no readings from node7" in lines_of(report, DURING)[0]
    assert not [measure for measure in report.result.measures if measure.name == "energy"]


def test_a_busy_processor_is_no_bottleneck_where_it_is_the_device(tmp_path: Path) -> None:
    story = one_rank(host="node7", begin_monotonic_s=r.MONOTONIC_S, end_monotonic_s=r.MONOTONIC_S + 10)
    assert setup().device is CPU
    launch = replace(story, case=replace(case(), monitor=MonitorSpec(interval_s=0.1))).records()
    samples = [r.sample(tick / 10, {}, host={"cpu_percent": 99.9}) for tick in range(NUM_SAMPLES)]
    report = concluded(tmp_path, launch, [r.header([]), *samples, r.end(10.0, samples=NUM_SAMPLES)])
    assert common_of(report).remarks == ()
    assert lines_of(report, DURING) == [
        "host: monitored during every launch (readings cover all of each window), nothing unusual"
    ]
    assert report.result.validity == "VALID"


def read_during(folder: Path, *, ticks: range, interval_s: float, was_ended: bool = True) -> list[str]:
    """Conclude ten seconds on the CPU, with readings at some moments; return what stood out."""
    story = one_rank(host="node7", begin_monotonic_s=r.MONOTONIC_S, wall_s=10.0)
    launch = replace(story, case=replace(case(), monitor=MonitorSpec(interval_s=interval_s))).records()
    samples = [r.sample(tick * interval_s, {}, host={"cpu_percent": 20.0}) for tick in ticks]
    end = [r.end(10.0, samples=len(samples))] if was_ended else []
    report = concluded(folder, launch, [r.header([], fast_interval_s=interval_s), *samples, *end])
    return lines_of(report, DURING)


def test_a_window_without_a_reading_is_said(tmp_path: Path) -> None:
    (cut_to_header,) = read_during(tmp_path / "a", ticks=range(0), interval_s=0.1, was_ended=False)
    assert cut_to_header == "launch 1: there are no readings in the window"
    (killed_before,) = read_during(tmp_path / "b", ticks=range(-20, -5), interval_s=0.1, was_ended=False)
    assert killed_before == (
        "launch 1: there are no readings in the window: the sampler was killed; "
        "its last reading came 600 ms before it"
    )
    (too_seldom,) = read_during(tmp_path / "c", ticks=range(-1, 0), interval_s=30.0)
    assert too_seldom == "launch 1: there are no readings in the window"


def test_a_sampler_killed_within_the_window_is_said_with_when(tmp_path: Path) -> None:
    (line,) = read_during(tmp_path, ticks=range(41), interval_s=0.1, was_ended=False)
    assert line == (
        "launch 1: the readings cover only 40 % of the window: the sampler was killed; its last reading came "
        "4.00 s after the window started"
    )


def test_a_sampler_killed_after_the_window_is_no_loss(tmp_path: Path) -> None:
    (line,) = read_during(tmp_path, ticks=range(-10, 130), interval_s=0.1, was_ended=False)
    assert line.endswith("nothing unusual")


@pytest.mark.parametrize(
    ("load", "code"),
    [
        (replace(QUIET, busy_cpu_s=60.0, run_queue_wait_s=0.8), "cpu-neighbours"),
        (replace(QUIET, steal_cpu_s=8.0), "cpu-steal"),
    ],
)
def test_where_a_doubt_names_a_neighbour_nothing_else_stood_out(
    load: HostLoad, code: str, tmp_path: Path
) -> None:
    story = one_rank(
        host="node7",
        begin_monotonic_s=r.MONOTONIC_S,
        end_monotonic_s=r.MONOTONIC_S + 10,
        wall_s=10.0,
        steps_s=10.0,
        times_s=steady_times(100, 0.1),
        load=load,
    )
    launch = replace(story, case=replace(case(), monitor=MonitorSpec(interval_s=0.1))).records()
    samples = [r.sample(tick / 10, {}, host={"cpu_percent": 20.0}) for tick in range(NUM_SAMPLES)]
    report = concluded(tmp_path, launch, [r.header([]), *samples, r.end(10.0, samples=NUM_SAMPLES)])
    assert [doubt.code for doubt in report.result.doubts] == [code]
    assert lines_of(report, DURING) == [
        "host: monitored during every launch (readings cover all of each window), "
        "and apart from the processes named above nothing unusual"
    ]


def test_where_a_doubt_names_a_process_on_the_gpu_nothing_else_stood_out(tmp_path: Path) -> None:
    crowded = replace(ALONE, other_processes=1)
    story = one_rank(
        host="node7",
        begin_monotonic_s=r.MONOTONIC_S,
        end_monotonic_s=r.MONOTONIC_S + 10,
        neighbours=crowded,
        clock="device_event",
    )
    monitored = replace(case(), monitor=MonitorSpec(interval_s=0.1))
    launched = replace(story, setups=[setup(device=gpu(9))], case=monitored)
    samples = [r.sample(tick / 10, {}, host={"cpu_percent": 20.0}) for tick in range(NUM_SAMPLES)]
    recording = [r.header([]), *samples, r.end(10.0, samples=NUM_SAMPLES)]
    report = concluded(tmp_path, launched.records(), recording)
    assert doubt_of(report, "gpu-neighbours").reason == "1 other process uses Fake GPU 80 GPU-0009"
    assert lines_of(report, DURING) == [
        "launch 1: 1 of 1 devices of the launch on node7 were not read: "
        "their clocks, temperatures and errors are not known"
    ]
