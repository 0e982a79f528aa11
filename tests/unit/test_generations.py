"""Decode's growing steps are judged against their place in a generation, and other changes are still seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from gpuproof.launches.power_cap import evened_steps
from gpuproof.statistics.dispersion import noise
from gpuproof.verdict.doubts.base import Measured
from gpuproof.verdict.doubts.rules import doubts_about
from records_by_hand import STEP_OPTIONS, Story, case, one_rank, setup

LENGTH = 64
GROWTH = 0.5
"""The last step of a generation takes half as long again as the first: far over what is called noisy."""


def decode(times_s: Sequence[float], *, begin: int | None = 17) -> Story:
    asked = case(kind="inference", inference={"phase": "decode", "new_tokens": LENGTH})
    return replace(one_rank(times_s=times_s, tokens_before=begin), case=asked)


def growing(num_steps: int, *, begin: int = 17, spread: float = 0.01, staircase: bool = False) -> np.ndarray:
    rng = np.random.default_rng(num_steps)
    places = (begin + np.arange(num_steps)) % LENGTH
    grown = (places // 16) / 3 if staircase else places / (LENGTH - 1)
    return 0.01 * (1 + GROWTH * grown) * (1 + spread * rng.standard_normal(num_steps))


def codes(story: Story) -> list[str]:
    return [doubt.code for doubt in doubts_about(Measured(launch=story.launch()))]


@pytest.mark.parametrize("num_generations", [2, 3, 5, 25])
def test_growth_with_the_place_is_no_noise(num_generations: int) -> None:
    times = growing(num_generations * LENGTH).tolist()
    assert noise(times) > 0.15  # type: ignore[operator]  # there are enough of them
    assert codes(decode(times)) == []
    assert "noisy" in codes(replace(decode(times), case=case(kind="inference")))


def test_a_staircase_is_seen_place_by_place() -> None:
    assert codes(decode(growing(20 * LENGTH, staircase=True).tolist())) == []


def test_steps_of_a_bucket_are_alike_and_a_single_median_is_theirs() -> None:
    """Behind 543 tokens, 33 of 64 steps need no place beyond 576."""
    asked = case(kind="inference", inference={"phase": "decode", "new_tokens": LENGTH, "prompt_tokens": 543})
    places = (17 + np.arange(3 * LENGTH)) % LENGTH
    times = 0.01 * np.where(544 + places <= 576, 1.0, 1.3)
    built = replace(setup(), options=replace(STEP_OPTIONS, graph_ends=(576, 640)), input_shape=(543,))
    story = replace(decode(times.tolist()), case=asked, setups=[built])
    evened = evened_steps(story.launch())
    assert max(evened.times_s) == pytest.approx(min(evened.times_s))
    assert evened.growth == pytest.approx(0.3)
    assert codes(story) == []
    slower = times * np.where(np.arange(3 * LENGTH) < 130, 1.0, 1.25)
    assert codes(replace(story, times_s=slower.tolist()))


def test_the_offset_is_known_and_not_guessed() -> None:
    times = growing(3 * LENGTH, begin=40).tolist()
    right = evened_steps(decode(times, begin=40).launch())
    assert noise(right.times_s) < 0.03  # type: ignore[operator]
    assert noise(evened_steps(decode(times, begin=0).launch()).times_s) > 0.10  # type: ignore[operator]
    assert evened_steps(decode(times, begin=None).launch()).times_s == tuple(times)  # an older record
    many = growing(20 * LENGTH, begin=40).tolist()  # where places repeat, no offset is needed
    assert noise(evened_steps(decode(many, begin=None).launch()).times_s) < 0.03  # type: ignore[operator]


@pytest.mark.parametrize("num_generations", [3, 22])
def test_a_clock_that_falls_and_steps_that_scatter_are_still_seen(num_generations: int) -> None:
    num = num_generations * LENGTH
    times = growing(num)
    slower = times * np.where(np.arange(num) < 0.7 * num, 1.0, 1.25)
    assert codes(decode(slower.tolist()))
    assert codes(decode(growing(num, spread=0.12).tolist()))


def test_within_one_generation_growth_and_a_device_that_slows_down_cannot_be_told_apart() -> None:
    places = np.arange(LENGTH - 4)
    assert codes(decode((0.01 * (1 + 0.2 * places / LENGTH)).tolist(), begin=2)) == ["growth-or-drift"]
    assert codes(decode((0.01 * (1 + 0.04 * places / LENGTH)).tolist(), begin=2)) == []
    at_once = 0.01 * np.where(places > 40, 1.25, 1.0)
    assert codes(decode(at_once.tolist(), begin=2))


@pytest.mark.parametrize("num_generations", [2, 5])
def test_steps_that_do_not_grow_are_left_as_they_are(num_generations: int) -> None:
    rng = np.random.default_rng(3)
    changed = 0
    for _ in range(200):
        times = tuple((0.01 * np.exp(0.1 * rng.standard_normal(num_generations * LENGTH))).tolist())
        changed += evened_steps(decode(times).launch()).times_s != times
    assert changed <= 2


def test_other_steps_are_left_as_they_are() -> None:
    launch = one_rank(times_s=[0.01, 0.02] * 50).launch()
    assert evened_steps(launch).times_s is launch.step_times_s
