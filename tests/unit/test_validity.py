"""Every doubt from both sides of its threshold, on launches whose numbers are written down by hand."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from inspect import getmembers, isfunction, signature
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import pytest

from gpuproof.hardware.boards import Peak, find_peak
from gpuproof.launches.launch import Launch, summarize_launch
from gpuproof.records.collected import CaseRecords
from gpuproof.records.result import Doubt, worst
from gpuproof.records.run import Steps
from gpuproof.verdict import doubts as doubts_package
from gpuproof.verdict.doubts import collectives, rules, serving
from gpuproof.verdict.doubts.base import Measured
from gpuproof.verdict.doubts.rules import doubts_about
from gpuproof.verdict.summary import summarize
from records_by_hand import H200, QUIET, Story, case, one_rank, setup, steady_times, window

H200_BF16 = find_peak("NVIDIA H200", "bf16")


def doubts(launch: Launch, peak: Peak | None = None) -> tuple[Doubt, ...]:
    return doubts_about(Measured(launch=launch, peak=peak))


def codes(story: Story) -> list[tuple[str, str]]:
    return [(found.validity, found.code) for found in doubts(story.launch())]


def only(story: Story) -> Doubt:
    (found,) = doubts(story.launch())
    return found


def test_updates_that_amp_skipped_are_a_doubt_beyond_one_in_twenty() -> None:
    assert codes(one_rank(skipped_updates=5)) == codes(one_rank(skipped_updates=None)) == []
    told = only(one_rank(skipped_updates=100))
    assert (told.validity, told.code) == ("SUSPECT", "skipped-updates")
    assert "in at least 100 of 100 steps" in told.reason


def test_launches_on_different_device_models_are_suspect_and_have_no_peak() -> None:
    other = replace(H200, name="NVIDIA A100-SXM4-80GB")
    models = [H200, H200, other]
    stories = [Story(setups=[setup(device=device)], replicate=place) for place, device in enumerate(models)]
    mixed = summarize([story.records() for story in stories], num_planned=3, find_peak=find_peak)
    assert (mixed.validity, mixed.peak) == ("SUSPECT", None)
    assert "devices-differ" in {doubt.code for doubt in mixed.doubts}
    same = summarize([story.records() for story in stories[:2]], num_planned=2, find_peak=find_peak)
    assert same.peak is not None
    assert "devices-differ" not in {doubt.code for doubt in same.doubts}


def lost_of(records: CaseRecords) -> list[str]:
    launch = summarize_launch(records)
    assert launch is not None
    return [found.reason for found in doubts(launch) if found.code == "steps-lost"]


def test_nothing_is_said_of_a_launch_that_is_sound() -> None:
    assert codes(one_rank()) == []
    assert codes(Story(windows=[window(rank) for rank in range(4)])) == []


def test_the_worst_doubt_decides() -> None:
    suspect = Doubt(validity="SUSPECT", code="noisy", reason="r", remedy="m")
    invalid = replace(suspect, validity="INVALID")
    assert (worst([]), worst([suspect]), worst([suspect, invalid])) == ("VALID", "SUSPECT", "INVALID")


def test_outputs_that_are_no_numbers_are_a_doubt_in_inference_and_in_training() -> None:
    windows = [window(), window(1, not_finite_after=(10, 25))]
    told = only(Story(windows=windows, case=case(kind="inference")))
    assert (told.validity, told.code) == ("SUSPECT", "not-finite")
    assert told.reason == (
        "outputs of rank 1 on node1 contained infinities or NaN when checked after 25 of 100 steps, "
        "and after 10 did not"
    )
    assert "the loss of rank 0 on node1" in only(one_rank(not_finite_after=(0, 100))).reason


# --- contradictions -------------------------------------------------------------------------------------


def test_items_must_be_those_of_the_steps() -> None:
    found = only(one_rank(items=999))
    assert (found.validity, found.code) == ("INVALID", "items-disagree")
    assert "rank 0 counts 999 items, but its steps add up to 1,000" in found.reason


def test_ranks_must_run_the_same_steps() -> None:
    story = Story(windows=[window(0), window(1, num_steps=99, items=990)])
    assert codes(story) == [("INVALID", "ranks-disagree")]
    assert "[99, 100]" in only(story).reason


@pytest.mark.parametrize(
    ("step_s", "expected"), [(0.01019, []), (0.01021, [("INVALID", "steps-exceed-window")])]
)
def test_steps_must_fit_their_window(step_s: float, expected: list[Any]) -> None:
    assert codes(one_rank(times_s=steady_times(100, step_s), wall_s=1.0)) == expected


def test_step_times_must_be_of_all_steps() -> None:
    assert codes(Story(times_s=steady_times(98))) == [("INVALID", "steps-lost")]
    ranks = Story(windows=[window(0), window(1)]).records()
    first, second = (x for x in ranks.of(Steps) if x.phase == "measure")
    without = replace(ranks, records=tuple(x for x in ranks.records if x is not second))
    assert lost_of(without) == ["0 step times of rank 1 were stored for 100 steps"]
    half = replace(first, durations_s=first.durations_s[:50])
    partly = replace(ranks, records=tuple(half if x is first else x for x in ranks.records))
    assert lost_of(partly) == ["50 step times of rank 0 were stored for 100 steps"]
    # Not kept at all, as the recipe may ask: then nobody can tell whether steps kept one level.
    assert codes(Story(times_s=())) == [("SUSPECT", "steadiness-unknown")]


@pytest.mark.parametrize(
    ("step_s", "expected"), [(0.0099, []), (0.0090, [("INVALID", "step-times-disagree")])]
)
def test_step_times_must_sum_to_what_the_window_says(step_s: float, expected: list[Any]) -> None:
    assert codes(Story(times_s=steady_times(100, step_s))) == expected


# --- the physical ceiling -------------------------------------------------------------------------------


def _on_h200(flops_per_step: float, **built: Any) -> Story:
    described = setup(device=H200, flops_per_step=flops_per_step, precision="bf16", **built)
    return Story(windows=[window(clock="device_event")], setups=[described], case=case(precision="bf16"))


def _over(story: Story, *, clock_mhz: float | None) -> list[Doubt]:
    return list(doubts_about(Measured(launch=story.launch(), peak=H200_BF16, clock_max_mhz=clock_mhz)))


@pytest.mark.parametrize(
    ("flops_per_step", "clock_mhz", "validity"),
    [
        # 100 steps in 1 s. The data sheet's 989.5 TFLOP/s hold at 1,830 MHz: 1,070.6 at 1,980 MHz.
        (9.895e12, None, None),
        (9.896e12, 1980.0, "SUSPECT"),
        (1.0706e13, 1980.0, "SUSPECT"),
        (1.0707e13, 1980.0, "INVALID"),
        (9.896e12, 1500.0, "INVALID"),  # a device that is held below that clock for good
        (1.48e13, None, "SUSPECT"),  # where its clock was not read, half as much again is too much
        (1.485e13, None, "INVALID"),
    ],
)
def test_only_what_the_highest_clock_does_not_allow_is_impossible(
    flops_per_step: float, clock_mhz: float | None, validity: str | None
) -> None:
    found = _over(_on_h200(flops_per_step), clock_mhz=clock_mhz)
    assert [doubt.validity for doubt in found] == ([] if validity is None else [validity])
    for doubt in found:
        assert doubt.code == {"SUSPECT": "over-peak", "INVALID": "over-ceiling"}[doubt.validity]
        assert "TFLOP/s is above the 989.5 TFLOP/s dense bf16 peak of NVIDIA H200" in doubt.reason
        assert "data sheet" in doubt.reason


def test_what_a_causal_kernel_leaves_out_is_not_held_against_a_device() -> None:
    causal = _on_h200(1.2e13, item="tokens", flops_skippable_per_step=2e12)
    assert [doubt.code for doubt in _over(causal, clock_mhz=1980.0)] == ["over-peak"]
    causal = _on_h200(1.3e13, item="tokens", flops_skippable_per_step=2e12)
    (found,) = _over(causal, clock_mhz=1980.0)
    assert found.code == "over-ceiling"
    assert "1,100.0 TFLOP/s of it, and above the 1,070.6 TFLOP/s of its highest clock" in found.reason
    uncounted = _on_h200(1.3e13, item="tokens")
    assert [doubt.code for doubt in _over(uncounted, clock_mhz=1980.0)] == ["over-peak"]


def test_without_a_ceiling_there_is_no_doubt() -> None:
    assert doubts(_on_h200(9.895e20).launch()) == ()


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        ({"flops_per_step": None}, [("SUSPECT", "work-not-counted")]),
        ({"flops_per_step": None, "flops_per_step_counted": 1e9}, []),
        ({"flops_per_step": None, "flops_per_step_counted": 0.0}, [("SUSPECT", "work-not-counted")]),
        ({"flops_per_step": 0.0, "bytes_per_step": 1e9}, []),
    ],
)
def test_a_step_whose_work_nobody_counted_is_suspect(built: dict[str, Any], expected: list[Any]) -> None:
    assert codes(Story(setups=[setup(**built, flops_not_counted="switched off")])) == expected


# --- less than was asked --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"requested_steps": 100}, []),
        ({"requested_steps": 101}, [("INVALID", "too-short")]),
        ({"requested_s": 1.0}, []),
        ({"requested_s": 1.01}, [("INVALID", "too-short")]),
    ],
)
def test_a_window_that_ended_early_is_no_result(asked: dict[str, Any], expected: list[Any]) -> None:
    assert codes(one_rank(**asked)) == expected


@pytest.mark.parametrize(("num_steps", "expected"), [(10, []), (9, [("SUSPECT", "few-steps")])])
def test_few_steps_say_little(num_steps: int, expected: list[Any]) -> None:
    assert codes(one_rank(times_s=[0.01] * num_steps)) == expected


# --- time between steps ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clock", "busy_s", "expected"),
    [
        ("device_event", 0.901, []),
        ("device_event", 0.899, [("VALID", "host-bound")]),
        ("host_synchronised", 0.899, [("VALID", "host-bound")]),
        ("host", 0.981, []),
        ("host", 0.979, [("SUSPECT", "gap-between-steps")]),
        ("host", 0.951, [("SUSPECT", "gap-between-steps")]),
        ("host", 0.949, [("INVALID", "gap-between-steps")]),
    ],
)
def test_time_outside_of_steps_is_explained_or_refused(
    clock: str, busy_s: float, expected: list[Any]
) -> None:
    assert codes(one_rank(times_s=steady_times(100, busy_s / 100), wall_s=1.0, clock=clock)) == expected


@pytest.mark.parametrize(("wall_s", "validity"), [(0.499, "SUSPECT"), (0.501, "INVALID")])
def test_a_short_window_may_lose_to_the_scheduler_what_a_long_one_may_not(
    wall_s: float, validity: str
) -> None:
    busy_s = 0.9 * wall_s  # a tenth is missing: just under and just over 50 ms
    story = one_rank(times_s=steady_times(100, busy_s / 100), wall_s=wall_s)
    assert codes(story) == [(validity, "gap-between-steps")]


@pytest.mark.parametrize(("busy_s", "expected"), [(0.981, []), (0.90, [("SUSPECT", "ranks-wait")])])
def test_ranks_on_processors_may_wait_for_each_other(busy_s: float, expected: list[Any]) -> None:
    waiting = window(1, steps_s=busy_s, wall_s=1.0001)
    story = Story(windows=[window(0), waiting], times_s=steady_times(100, busy_s / 100))
    assert codes(story) == expected


# --- unsteady steps -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("swing", "expected"), [(0.049, []), (0.051, [("SUSPECT", "noisy")])])
def test_step_times_may_spread_by_a_tenth(swing: float, expected: list[Any]) -> None:
    # Half of the steps are slower by `swing`, half faster: the quartiles lie 2 × swing apart.
    assert codes(one_rank(times_s=[0.01 * (1 + swing * (-1) ** i) for i in range(100)])) == expected


@pytest.mark.parametrize(("growth", "expected"), [(0.05, []), (0.06, [("SUSPECT", "unsteady")])])
def test_levels_of_a_window_may_differ_by_a_twentieth(growth: float, expected: list[Any]) -> None:
    # Steps grow evenly by g over 288 of them. A twelfth is 24 steps, so that the first and last medians are
    # g · (288 − 24)/287 apart: 4.6 % and 5.5 % of the first step, 4.5 % and 5.4 % of the median step.
    times = [0.01 * (1 + growth * i / 287) for i in range(288)]
    assert codes(one_rank(times_s=times)) == expected
    if expected:
        said = "differ by 5.4 %, {} at 4.2 % of the window and {} at 96 %"
        assert said.format("fastest", "slowest") in only(one_rank(times_s=times)).reason
        assert only(one_rank(times_s=times[::-1])).reason.endswith("96 % of the window and slowest at 4.2 %")


@pytest.mark.parametrize(("stop_s", "expected"), [(0.041, []), (0.043, [("SUSPECT", "stalled")])])
def test_steps_that_stop_may_lose_a_twenty_fifth_of_the_window(stop_s: float, expected: list[Any]) -> None:
    # 100 steps of 10 ms, one of them longer by `stop_s`: 4.1/104.1 = 3.9 % of the time, 4.3/104.3 = 4.1 %.
    times = [0.01] * 99 + [0.01 + stop_s]
    assert codes(one_rank(times_s=times)) == expected
    if expected:
        assert (
            "1 of 100 steps took over 1.25 times the median, and their excess is 4.1 % of the window"
            in only(one_rank(times_s=times)).reason
        )


def test_steps_of_unequal_work_are_no_stops() -> None:
    found = only(one_rank(times_s=[0.01, 0.01, 0.01, 0.01, 0.015] * 20))
    assert (found.validity, found.code) == ("SUSPECT", "periodic-steps")
    # 20 of 100 steps of 10 ms take 5 ms more: 0.1 of 1.1 s.
    assert (
        "20 of 100 steps took over 1.25 times the median, at the same positions in every 5 steps"
        in found.reason
    )
    assert "9.1 % of the window" in found.reason


def test_steps_that_scatter_may_hide_a_change_of_level() -> None:
    chance = random.Random(3)
    times = [0.01 * (1 + chance.gauss(0, 0.05)) for _ in range(60)]
    found = only(one_rank(times_s=times))
    assert (found.validity, found.code) == ("SUSPECT", "steadiness-unknown")
    assert "which can happen by chance with 60 steps that vary this much" in found.reason
    assert "benchmark.measure_steps" in found.remedy


def test_steps_that_grow_with_their_text_are_of_unequal_work_and_steady() -> None:
    # Ten texts of 16 tokens, the last of each a fifth slower than the first, on a window that does not drift.
    times = [0.01 * (1 + 0.2 * (i % 16) / 15) for i in range(160)]
    told = case(kind="inference", inference={"phase": "decode", "new_tokens": 16})
    assert codes(replace(one_rank(times_s=times, tokens_before=0), case=told)) == []
    slower = [time_s * (1.0 if i < 80 else 1.1) for i, time_s in enumerate(times)]
    # With ten generations growth is a line, and a change of level on top hides it: that is said, too.
    found = codes(replace(one_rank(times_s=slower, tokens_before=0), case=told))
    assert found == [("SUSPECT", "steadiness-unknown")]


# --- neighbours -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        # 8 processors, a window of 1 s, 1 s of it our own; others' share is what is over 1 s.
        ({"busy_cpu_s": 1.24, "run_queue_wait_s": 0.5}, []),
        ({"busy_cpu_s": 1.26, "run_queue_wait_s": 0.5}, [("SUSPECT", "cpu-neighbours")]),
        ({"busy_cpu_s": 5.0, "run_queue_wait_s": 0.020}, []),  # 0.020 of 1.020 s is under 2 %
        ({"busy_cpu_s": 5.0, "run_queue_wait_s": 0.021}, [("SUSPECT", "cpu-neighbours")]),
        ({"busy_cpu_s": 7.5, "run_queue_wait_s": None}, []),
        ({"busy_cpu_s": 7.7, "run_queue_wait_s": None}, [("SUSPECT", "cpu-neighbours")]),  # of 7.6 s
        # A thread that feeds a GPU works for 0.1 s: what it waits is held against the window's 1 s …
        ({"busy_cpu_s": 5.0, "own_cpu_s": 0.1, "run_queue_wait_s": 0.020}, []),
        ({"busy_cpu_s": 5.0, "own_cpu_s": 0.1, "run_queue_wait_s": 0.021}, [("SUSPECT", "cpu-neighbours")]),
        # … and four threads' waits against four processors' seconds.
        ({"busy_cpu_s": 7.0, "own_cpu_s": 4.0, "run_queue_wait_s": 0.080}, []),
        ({"busy_cpu_s": 7.0, "own_cpu_s": 4.0, "run_queue_wait_s": 0.082}, [("SUSPECT", "cpu-neighbours")]),
        ({"busy_cpu_s": None, "run_queue_wait_s": 0.5}, []),
        ({"busy_cpu_s": None, "run_queue_wait_s": None}, []),
        ({"steal_cpu_s": 0.16}, []),
        ({"steal_cpu_s": 0.17}, [("SUSPECT", "cpu-steal")]),
        ({"steal_cpu_s": None}, []),
    ],
)
def test_processors_taken_by_others(load: dict[str, Any], expected: list[Any]) -> None:
    assert codes(one_rank(load=replace(QUIET, **load))) == expected


def test_a_neighbour_who_takes_steps_from_3_to_330_ms_is_noticed() -> None:
    # 30 steps that need 3 ms on two threads, 0.18 s of work in all, drawn out over 9.9 s: the two
    # threads stood in the queue for the rest, while two processors worked for somebody else.
    crowded = replace(QUIET, num_cpus=2, busy_cpu_s=19.7, own_cpu_s=0.18, run_queue_wait_s=19.3)
    found = only(one_rank(times_s=[0.330] * 30, load=crowded))
    assert (found.validity, found.code) == ("SUSPECT", "cpu-neighbours")
    assert "kept 2.0 of 2 CPUs busy" in found.reason
    # The same steps from a model that does need 330 ms are nobody's fault.
    own_work = replace(QUIET, num_cpus=2, busy_cpu_s=19.9, own_cpu_s=19.7, run_queue_wait_s=0.02)
    assert codes(one_rank(times_s=[0.330] * 30, load=own_work)) == []


def test_others_never_took_more_processors_than_there_are() -> None:
    # 2 processors' work of 12 s before a window of 5 s was closed: the readings lie 6 s apart.
    told = replace(QUIET, num_cpus=2, busy_cpu_s=12.0, own_cpu_s=0.0, run_queue_wait_s=3.0, span_s=6.0)
    for load in (told, replace(told, span_s=None)):  # as it is written, and as it was before
        (found,) = [
            x
            for x in doubts(one_rank(times_s=[0.05] * 100, load=load).launch())
            if x.code == "cpu-neighbours"
        ]
        assert "kept 2.0 of 2 CPUs busy" in found.reason
    half = replace(told, busy_cpu_s=6.0)
    (found,) = [
        x for x in doubts(one_rank(times_s=[0.05] * 100, load=half).launch()) if x.code == "cpu-neighbours"
    ]
    assert "kept 1.0 of 2 CPUs busy" in found.reason


def test_neighbours_are_counted_once_a_host_and_ranks_are_no_neighbours_of_each_other() -> None:
    crowd = replace(QUIET, busy_cpu_s=4.0, run_queue_wait_s=0.5)  # of four ranks with 1 s each
    same_host = [window(rank, load=crowd) for rank in range(4)]
    assert codes(Story(windows=same_host)) == []
    two_hosts = [replace(each, host=f"node{each.rank // 2}") for each in same_host]
    assert codes(Story(windows=two_hosts)) == [("SUSPECT", "cpu-neighbours")] * 2


@pytest.mark.parametrize(
    ("others", "expected"),
    [(None, None), (0, None), (1, "1 other process uses"), (2, "2 other processes use")],
)
def test_other_users_of_the_gpu(others: int | None, expected: str | None) -> None:
    neighbours = replace(window().neighbours, other_processes=others)
    story = Story(windows=[window(neighbours=neighbours, clock="device_event")], setups=[setup(device=H200)])
    reasons = [found.reason for found in doubts(story.launch())]
    assert reasons == ([] if expected is None else [f"{expected} NVIDIA H200 GPU-0a"])


# --- published figures that contradict themselves (requirements C12, C19, C21) -----------------------------


def test_a_throughput_that_its_own_step_time_denies_is_invalid() -> None:
    # Claimed: 14,234 samples/s with steps of 47.2 ms and 512 samples. 100 such steps take 4.72 s, so that
    # the claim is 67,184 samples; the steps make 51,200, which is 10,847 samples/s.
    claimed = one_rank(times_s=[0.0472] * 100, items=67_184)
    story = replace(claimed, setups=[setup(items_per_step=512)])
    assert codes(story) == [("INVALID", "items-disagree")]
    honest = replace(one_rank(times_s=[0.0472] * 100, items=51_200), setups=[setup(items_per_step=512)])
    assert codes(honest) == []
    assert honest.launch().items_per_s_total == pytest.approx(10_847.5, abs=0.05)


def test_a_window_ten_times_as_long_as_its_steps_is_invalid() -> None:
    # Claimed: 100 steps of 39 ms, 45.2 s in all, 52,800 samples/s on 32 ranks with 64 samples each.
    ranks = range(32)
    slow = [window(r, wall_s=45.2, steps_s=3.9, items=round(52_800 * 45.2 / 32)) for r in ranks]
    setups = [setup(r, items_per_step=64) for r in ranks]
    found = codes(Story(windows=slow, setups=setups, times_s=[0.039] * 100))
    assert found == [("INVALID", "items-disagree")] * 32 + [("SUSPECT", "ranks-wait")]
    assert codes(one_rank(times_s=[0.039] * 100, wall_s=45.2)) == [("INVALID", "gap-between-steps")]


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_throughput_times_the_ranks_once_more_cannot_be_expressed(num_ranks: int) -> None:
    # A rank that counts everybody's samples as its own would multiply the total by the number of ranks.
    honest = Story(windows=[window(r) for r in range(num_ranks)])
    assert honest.launch().items_per_s_total == 1000 * num_ranks
    inflated = Story(windows=[window(r, items=1000 * num_ranks) for r in range(num_ranks)])
    expected = [("INVALID", "items-disagree")] * num_ranks if num_ranks > 1 else []
    assert codes(inflated) == expected


@pytest.mark.parametrize(
    ("reason", "width", "said"),
    [
        ("precision reached", 0.009, None),
        (
            "time limit",
            0.034,
            "the mean step is known only to ±3.4 %, not to ±1.0 % as requested: time limit",
        ),
        (
            "time limit",
            1.17,
            "the mean step is not measured well enough, not to ±1.0 % as requested: time limit",
        ),
        ("time limit", 0.009, "since the parts of the window do not agree yet: time limit"),
        ("more samples do not help", None, "the mean step is unknown instead of ±1.0 % as requested"),
        ("20 s at the power cap", 0.0008, None),  # it was reached, and the cap needed a longer window
        ("20 s at the power cap", 0.02, "known only to ±2.0 %, not to ±1.0 % as requested"),
    ],
)
def test_a_precision_that_was_not_reached_is_said(reason: str, width: float | None, said: str | None) -> None:
    asked = case(window={"measure_by": "precision", "target_precision": 0.01, "measure_seconds": 60.0})
    taken = window(stop_reason=reason, relative_half_width=width, requested_steps=None)
    found = [f for f in doubts(Story(windows=[taken], case=asked).launch()) if f.code == "imprecise"]
    assert [said in f.reason for f in found if said] == ([True] if said else [])
    assert len(found) == (said is not None)


# --- the register ---------------------------------------------------------------------------------------


def rules_in(module: ModuleType) -> Iterator[str]:
    """Yield the public functions of a module that take one thing and yield doubts."""
    for name, function in getmembers(module, isfunction):
        takes = [p.annotation for p in signature(function).parameters.values()]
        is_rule = takes in (["Measured"], ["LaunchExplanation"])
        if function.__module__ == module.__name__ and is_rule and not name.startswith("_"):
            assert signature(function).return_annotation == "Iterator[Doubt]", name
            yield name


def test_every_rule_is_registered() -> None:
    modules = [
        import_module(found.name)
        for found in iter_modules(doubts_package.__path__, "gpuproof.verdict.doubts.")
    ]
    written = {name for module in modules if module is not rules for name in rules_in(module)}
    registers = (
        rules.OF_STEPS,
        (*serving.OF_REQUESTS, *rules.NEIGHBOURS),
        (*collectives.OF_COLLECTIVES, *rules.NEIGHBOURS),
        (*collectives.OF_PROBES, *rules.NEIGHBOURS),
        rules.OF_READINGS,
    )
    registered = [rule for each in registers for rule in each]
    assert {rule.__name__ for rule in registered} == written
    assert {"contradictions", "limited", "unfair_requests", "device_faults"} <= written
    for each in registers:
        assert len(set(each)) == len(each)
