"""A launch at its power cap: interval, doubts and notes are those of its periods; elsewhere as ever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from controllers import Controller
from gpuproof.hardware.boards import find_peak
from gpuproof.launches.power_cap import continuation, rate_from_idle, resolution_text
from gpuproof.readings.evidence import DeviceWindow, HostWindow, WindowReadings
from gpuproof.records.what_ran import PowerCap
from gpuproof.statistics.estimate import Interval, Unavailable
from gpuproof.suites.recipe.measures import recipe_measures
from gpuproof.suites.results import rates_of_launches
from gpuproof.verdict.summary import RunSummary, summarize
from records_by_hand import one_rank, steps

OSCILLATION = Controller(wave="saw-tooth", period_s=1.0, depth=0.25, scatter=0.01)


def summary_of(times_s: Sequence[float], *, at_cap: float = 1.0) -> RunSummary:
    """Summarise one launch of such steps, whose GPU said that it was at its power cap for that share."""
    device = DeviceWindow(physical_index=0, throttle_shares={"power_cap": at_cap})
    read = WindowReadings(begin_monotonic_s=50.0, end_monotonic_s=80.0, devices=(device,), host=HostWindow())
    story = one_rank(times_s=tuple(times_s), clock="device_event")
    return summarize([story.records()], num_planned=1, find_peak=find_peak, readings={("main", 0): [read]})


def drawn(controller: Controller, window_s: float) -> list[float]:
    return [float(step_s) for step_s in controller.draw(np.random.default_rng(4), window_s)]


def told(summary: RunSummary) -> list[tuple[str, str]]:
    return [(doubt.code, doubt.reason) for doubt in summary.doubts]


def test_an_oscillation_at_the_cap_is_one_level() -> None:
    summary = summary_of(drawn(OSCILLATION, 24.3))
    assert told(summary) == []
    assert summary.validity == "VALID"
    assert isinstance(summary.throughput_interval, Interval)
    assert "power cap" in summary.throughput_interval.method
    (window,) = summary.power_caps
    assert window is not None
    assert resolution_text(window) == (
        "at the power cap for 24 periods of 1.0 s: a drift of 2.3 % during that time would have been detected"
    )


def test_the_same_steps_away_from_the_cap_are_judged_as_ever() -> None:
    summary = summary_of(drawn(OSCILLATION, 24.3), at_cap=0.49)
    assert [code for code, _ in told(summary)] == ["noisy"]
    assert summary.power_caps == (None,)
    assert not isinstance(summary.throughput_interval, Interval) or (
        "power cap" not in summary.throughput_interval.method
    )


@pytest.mark.parametrize(
    ("window_s", "said"),
    [
        (2.1, "too short at the power cap: 2.08 s without a visible period; 20 s are needed"),
        (9.3, "too short at the power cap: 9 periods of 1.0 s; 20 s are needed"),
    ],
)
def test_too_few_periods_say_what_they_need(window_s: float, said: str) -> None:
    summary = summary_of(drawn(OSCILLATION, window_s))
    (window,) = summary.power_caps
    assert window is not None
    assert told(summary) == [("short-at-power-cap", said)]
    assert summary.doubts[0].remedy.startswith(
        "Set benchmark.measure_by=time and benchmark.measure_seconds=2"
    )
    assert resolution_text(window) is None
    assert isinstance(summary.throughput_interval, Unavailable) == (window_s < 3)


def test_a_level_that_changed_is_said_with_its_size_and_place() -> None:
    dropped = OSCILLATION.changing(drop=0.12)
    ((code, reason),) = told(summary_of(drawn(dropped, 24.3)))
    assert code == "unsteady"
    assert reason.startswith("step time was not steady at the power cap: steps became 1")
    assert " % longer at " in reason
    ((_, drifted),) = told(summary_of(drawn(OSCILLATION.changing(drift=0.08), 24.3)))
    assert drifted.endswith("longer from start to end")


def test_periods_that_differ_too_much_cannot_tell() -> None:
    wild = Controller(wave="sine", period_s=1.0, depth=0.3, scatter=0.08)
    ((code, reason),) = told(summary_of(drawn(wild, 24.3)))
    assert code == "steadiness-unknown"
    assert "differ so much that drift across the window (any under 2" in reason


def test_a_stop_at_the_cap_is_found() -> None:
    times = drawn(OSCILLATION, 24.3)
    times[700] = 2.0
    assert "stalled" in [code for code, _ in told(summary_of(times))]


def test_from_idle_is_the_rate_of_the_first_tenth_of_a_second() -> None:
    cap = PowerCap(share=1.0, settled_after_s=3.0, needed_s=20.0, missing=None, first_clock_mhz=1980.0)
    story = one_rank(times_s=drawn(OSCILLATION, 24.3), clock="device_event", power_cap=cap)
    records = story.records()
    settling = steps(0, *[0.004] * 20, *[0.008] * 30, phase="settle")
    capped = summarize(
        [replace(records, records=(*records.records, settling))], num_planned=1, find_peak=find_peak
    )
    (launch,) = capped.launches
    items_per_step = launch.items_total / launch.slowest.num_steps
    assert rate_from_idle(launch) == pytest.approx(22 / 0.096 * items_per_step)  # 20 of 4 ms, 2 of 8 ms
    (measure,) = [
        m
        for m in recipe_measures(capped, rates_of_launches([records], capped.launches), None)
        if m.name == "throughput from idle"
    ]
    assert "SM clock 1,980 MHz, power unknown; for the sustained rate see throughput" in measure.detail
    assert measure.better is None
    assert rate_from_idle(one_rank().launch()) is None


def test_the_page_says_which_period_the_worker_saw() -> None:
    cap = PowerCap(share=1.0, settled_after_s=3.0, needed_s=10.0, missing=None, period_s=0.5)
    story = one_rank(times_s=drawn(OSCILLATION, 24.3), clock="device_event", power_cap=cap)
    (launch,) = summarize([story.records()], num_planned=1, find_peak=find_peak).launches
    window = replace(
        launch.slowest, requested_steps=None, requested_s=1.0, stop_reason="10 s at the power cap"
    )
    assert "then extended for periods of 0.50 s of the power cap (" in continuation(window)
    unseen = replace(window, power_cap=replace(cap, period_s=None))
    assert "then extended for periods of the power cap (" in continuation(unseen)
