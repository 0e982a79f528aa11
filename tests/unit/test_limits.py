"""What limited a launch: hand-made cases of each limit, of several at once, and of none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuproof.hardware.boards import BandwidthPeak, Peak
from gpuproof.launches.limits import communication_limit, limits_of, limits_of_requests, limits_together
from gpuproof.observe.recording_page import recording_result
from gpuproof.readings.evidence import DeviceWindow, HostWindow, WindowReadings
from gpuproof.readings.limits import (
    LaunchLimits,
    limit_measure,
    limit_sentence,
    limits_of_readings,
    with_readings,
)
from gpuproof.readings.recording import load_recording
from gpuproof.records.breakdown import CollectiveOverlap
from gpuproof.records.result import Doubt, Measure, Result
from gpuproof.records.run import DeviceBusy
from gpuproof.verdict.doubts.base import Measured
from gpuproof.verdict.doubts.rules import LAUNCHES_DIFFER, weighed
from gpuproof.verdict.doubts.window import limited
from records_by_hand import Story, case, setup, window

CARDS = Path(__file__).parents[1] / "replay" / "cards"
PEAK = Peak(flops_per_s=1e12, dtype="bf16", source="a sheet", date="2026-01-01")
BANDWIDTH = BandwidthPeak(bytes_per_s=1e12, source="a sheet", date="2026-01-01")
CAPPED = DeviceWindow(
    physical_index=0,
    throttle_shares={"power_cap": 1.0},
    clock_sm_mhz=1400.0,
    clock_sm_max_mhz=1980.0,
    power_limit_w=700.0,
    power_limit_default_w=700.0,
)


def on_gpu(**changes: Any) -> Story:
    """Steps of 10 ms, timed on a device: 1,000 samples/s."""
    return Story(windows=[window(clock="device_event", **changes)])


def busy(*seconds_per_step: float) -> DeviceBusy:
    return DeviceBusy(rank=0, steps_per_block=10, busy_s_per_step=seconds_per_step, missing=None)


def read(*devices: DeviceWindow, **host: float) -> WindowReadings:
    return WindowReadings(
        begin_monotonic_s=50.0, end_monotonic_s=51.0, devices=devices, host=HostWindow(**host)
    )


def sentence(limits: LaunchLimits) -> str:
    return limit_sentence(limit_measure([limits]))


def names(limits: LaunchLimits) -> list[str]:
    return [limit.name for limit in limits.found]


def test_an_idle_device_is_limited_by_its_host_up_to_a_bound() -> None:
    """Busy for 3.2 of 10 ms: idle 68 %, and at most 1,000 / 0.32 = 3,125 samples/s."""
    story = replace(on_gpu(caught_up_steps=100), extra=[busy(0.0032, 0.0032, 0.0032)])
    limits = limits_of(story.launch())
    assert names(limits) == ["host"]
    assert limits.found[0].gain == pytest.approx(0.68 / 0.32)
    assert sentence(limits) == (
        "limited by the host: GPU idle for 68 % of the window; with these kernels and clocks at most about "
        "3,125 samples/s"
    )


def test_gaps_between_steps_are_the_hosts_and_a_device_that_keeps_up_is_not_limited_by_it() -> None:
    assert names(limits_of(on_gpu(steps_s=0.8).launch())) == ["host"]
    assert names(limits_of(on_gpu(steps_s=0.92).launch())) == []
    kept_up = replace(on_gpu(caught_up_steps=100), extra=[busy(0.0095, 0.0095, 0.0095)])
    assert names(limits_of(kept_up.launch())) == []


@pytest.mark.parametrize(("waited_s", "said"), [(0.04, []), (0.3, ["data loading"])])
def test_a_loader_that_is_waited_for(waited_s: float, said: list[str]) -> None:
    assert names(limits_of(on_gpu(data_wait_s=waited_s).launch())) == said


def test_collectives_beside_which_nothing_is_computed() -> None:
    """2.5 ms of 10 exposed: a quarter of a step."""
    overlap = CollectiveOverlap(
        rank=0, num_steps=10, collective_s=0.05, exposed_s=0.025, kernels=("all",), missing=None
    )
    limits = limits_of(replace(on_gpu(), extra=[overlap]).launch())
    assert names(limits) == ["communication"]
    assert "25 % of each step" in limits.found[0].text
    assert "1,333 samples/s" in limits.found[0].text


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"power_cap": 0.49}, []),
        ({"power_cap": 0.5}, ["power cap"]),
        ({"thermal_software": 0.3, "thermal_hardware": 0.3}, ["temperature"]),
        (None, []),
    ],
)
def test_a_cap_counts_from_half_of_the_window(shares: Mapping[str, float] | None, said: list[str]) -> None:
    device = replace(CAPPED, throttle_shares=shares)
    assert names(limits_of(on_gpu().launch(), readings=[read(device)])) == said


@pytest.mark.parametrize(
    ("limit_w", "default_w", "said"),
    [
        (700.0, 700.0, "700 W (the default)"),
        (500.0, 700.0, "500 W (below the default of 700 W)"),
        (500.0, None, "500 W (default unknown)"),
        (None, 700.0, "its limit was not read"),
    ],
)
def test_a_power_cap_says_which_and_how_fast(
    limit_w: float | None, default_w: float | None, said: str
) -> None:
    device = replace(CAPPED, power_limit_w=limit_w, power_limit_default_w=default_w)
    limits = limits_of(on_gpu().launch(), readings=[read(device)])
    assert sentence(limits) == (
        f"limited by the power cap: {said}, SM clock 1,400 of 1,980 MHz, 100 % of the window"
    )


@pytest.mark.parametrize(
    ("flops", "traffic", "said"),
    [
        (7e9, None, ["compute"]),  # 0.7 of the peak, in steps of 10 ms
        (4e9, None, []),
        (None, 8e9, ["memory bandwidth"]),
        (6e9, 8e9, ["memory bandwidth"]),  # the ceiling that is nearer
        (8e9, 6e9, ["compute"]),
        (1e9, 1e9, []),
    ],
)
def test_a_ceiling_is_a_limit_to_what_came_near(
    flops: float | None, traffic: float | None, said: list[str]
) -> None:
    built = setup(flops_per_step=flops, bytes_per_step=traffic)
    launch = replace(on_gpu(), setups=[built]).launch()
    limits = limits_of(launch, peak=PEAK, memory_peak=BANDWIDTH)
    assert names(limits) == said
    if not said:
        assert "the GPU was busy" in limits.unknown


def test_of_several_the_largest_gain_comes_first_and_ceilings_last() -> None:
    """Idle 20 % gains 25 %, the clock 41 %; products near their peak follow both."""
    story = replace(on_gpu(), setups=[setup(flops_per_step=8e9)], extra=[busy(0.008, 0.008, 0.008)])
    limits = limits_of(story.launch(), readings=[read(CAPPED)], peak=PEAK)
    assert names(limits) == ["power cap", "host", "compute"]
    assert sentence(limits).endswith("; also by the host, compute")


def test_what_nobody_could_time_is_unknown_with_the_reason() -> None:
    unseen = DeviceBusy(
        rank=0, steps_per_block=0, busy_s_per_step=(), missing="the driver returns no timestamps"
    )
    limits = limits_of(replace(on_gpu(caught_up_steps=90), extra=[unseen]).launch())
    assert names(limits) == []
    assert sentence(limits) == (
        "limited by: unknown, because how long the GPU was idle is not known: "
        "the driver returns no timestamps"
    )
    on_cpu = limits_of(Story().launch())
    assert on_cpu.unknown.startswith("how busy this workload kept the CPU")


def test_of_a_command_readings_say_it() -> None:
    idle = DeviceWindow(physical_index=0, throttle_shares={"idle": 0.4}, util_gpu_percent=55.0)
    slow_host = DeviceWindow(physical_index=0, throttle_shares={}, util_gpu_percent=40.0)
    assert names(limits_of_readings(read(CAPPED))) == ["power cap"]
    assert names(limits_of_readings(read(idle))) == ["host"]
    assert names(limits_of_readings(read(slow_host, cpu_max_core_percent=99.0))) == ["host"]
    assert names(limits_of_readings(read(slow_host, cpu_max_core_percent=50.0))) == []
    assert limits_of_readings(read()).unknown == "no GPU was read"


@pytest.mark.parametrize(
    ("idle", "said"),
    [
        ((0.4, 0.0), []),  # one works all the time, and the other may not be asked for anything
        ((0.4, 0.3), ["host"]),
        ((1.0, 1.0), []),  # not used at all
        ((1.0,), []),
        ((0.4,), ["host"]),
        ((0.05,), []),
    ],
)
def test_the_host_limits_a_command_where_every_gpu_that_it_used_idled(
    idle: tuple[float, ...], said: list[str]
) -> None:
    devices = [
        DeviceWindow(
            physical_index=index, throttle_shares={"idle": share}, util_gpu_percent=100 * (1 - share)
        )
        for index, share in enumerate(idle)
    ]
    assert names(limits_of_readings(read(*devices, cpu_max_core_percent=50.0))) == said


def test_what_was_read_beside_requests_and_collectives_is_not_lost() -> None:
    by_design = communication_limit("its steps do nothing but communicate")
    assert names(with_readings(by_design, [read(CAPPED)])) == ["communication", "power cap"]
    kept = limits_of_requests(None, 500.0, is_ours=True)
    assert names(with_readings(kept, [read(CAPPED)])) == ["power cap"]
    assert with_readings(kept, []) == kept


def test_nobody_says_that_a_device_was_busy_that_may_have_waited() -> None:
    unsure = replace(on_gpu(caught_up_steps=90), extra=[busy(0.007, 0.0095, 0.0099)])
    assert "too uncertain to tell" in limits_of(unsure.launch()).unknown
    latency = case(kind="inference", inference={"mode": "latency"})
    assert "the host waits for each batch" in limits_of(replace(on_gpu(), case=latency).launch()).unknown


def test_readings_do_not_contradict_a_device_that_was_timed_and_kept_up() -> None:
    starved = DeviceWindow(physical_index=0, throttle_shares={"idle": 0.4}, util_gpu_percent=40.0)
    assert names(limits_of(on_gpu().launch(), readings=[read(starved, cpu_max_core_percent=100.0)])) == []


@pytest.mark.parametrize(
    ("offered", "answered", "said"),
    [(100.0, 99.0, ["requested rate"]), (100.0, 80.0, []), (None, 500.0, [])],
)
def test_requests_are_limited_by_their_rate_where_it_was_kept(
    offered: float | None, answered: float, said: list[str]
) -> None:
    assert names(limits_of_requests(offered, answered, is_ours=True)) == said


def test_a_run_is_limited_by_what_most_of_its_launches_and_points_are() -> None:
    host = limits_of(replace(on_gpu(), extra=[busy(0.005, 0.005, 0.005)]).launch())
    capped = limits_of(on_gpu().launch(), readings=[read(CAPPED)])
    launches = limit_measure([host, host, capped])
    assert (launches.text, launches.value, launches.missing) == ("host", None, None)
    assert "(2 of 3 launches); also by the power cap" in launches.detail
    points = [
        replace(limit_measure([one]), case=str(place)) for place, one in enumerate((host, host, capped))
    ]
    (whole,) = limits_together([], points, "points")
    assert limit_sentence(whole) == ("limited by the host: at 2 of 3 points, the power cap at 1")


@pytest.mark.parametrize(
    ("phase", "compiled", "remedy"),
    [
        ("forward", None, "Raise data.batch_size, or use training.compile.enabled=true"),
        ("forward", "inductor", "Raise data.batch_size"),
        ("decode", None, "Raise data.batch_size"),  # a cache that grows is not compiled
    ],
)
def test_a_remedy_is_one_that_the_recipe_takes(phase: str, compiled: str | None, remedy: str) -> None:
    work = case(kind="inference", inference={"phase": phase, "new_tokens": 4})
    story = replace(on_gpu(steps_s=0.5), case=work, setups=[setup(compiled=compiled)])
    (host,) = limited(Measured(launch=story.launch()))
    assert (host.validity, host.code, host.remedy) == ("VALID", "host-bound", remedy)


def test_a_limit_is_a_doubt_only_of_a_rate_that_is_the_devices_or_differs() -> None:
    host = Doubt(validity="VALID", code="host-bound", reason="idle", remedy="")
    differ = Doubt(validity="SUSPECT", code=LAUNCHES_DIFFER, reason="wide", remedy="")
    assert [doubt.validity for doubt in weighed([host], is_of_device=False)] == ["VALID"]
    assert [doubt.validity for doubt in weighed([host], is_of_device=True)] == ["SUSPECT"]
    assert [d.validity for d in weighed([host, differ], is_of_device=False)] == ["SUSPECT", "SUSPECT"]


def test_the_limit_of_one_point_and_of_one_host_of_several_is_that_of_the_run() -> None:
    host = limits_of(replace(on_gpu(), extra=[busy(0.005, 0.005, 0.005)]).launch())
    point = replace(limit_measure([host]), case="batch_size=8")
    (of_points,) = limits_together([], [point], "points")
    assert limit_sentence(of_points) == sentence(host)
    on_host = [replace(measure, subject="host/a") for measure in (point, of_points)]
    (of_hosts,) = limits_together([], on_host, "hosts")
    assert limit_sentence(of_hosts) == sentence(host)
    result = result_of(point, *on_host)
    assert result.limit is None  # that of a point, a host or a cell of a validation is not the run's
    assert result_of(point, *on_host, of_hosts).limit == of_hosts


def result_of(*measures: Measure) -> Result:
    return Result(
        suite="validate",
        run_id="r",
        gpuproof_version="0",
        validity=None,
        verdict="READY",
        headline="",
        exit_code=0,
        num_launches=1,
        num_planned=1,
        conditions={},
        doubts=(),
        failures=(),
        measures=measures,
    )


def test_a_recording_whose_gpu_idled_names_the_host() -> None:
    def limit_of(run: str) -> Measure | None:
        (path,) = (CARDS / run / "cases" / "main" / "0").glob("monitor-*.jsonl")
        return recording_result(load_recording(path)).limit

    idle = limit_of("decode_h100")
    assert idle is not None
    assert idle.text == "host"
    assert idle.detail.startswith("each GPU reported idling for at least ")
