"""Ranks that differ: who is named, on what ground, and how often ranks that are alike are accused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpuproof.launches.ranks import compare_ranks, find_outliers
from gpuproof.records.result import Doubt
from gpuproof.records.work.parallel import plain_copies
from gpuproof.suites.recipe.ranks import ranks_shown, sections_of_ranks
from gpuproof.verdict.doubts.base import Measured
from gpuproof.verdict.doubts.collectives import unequal_ranks
from records_by_hand import H200, Story, case, own_compute, setup, window

NUM_BURSTS = 5


def of_ranks(*own_step_s: float, strategy: str | None = "ddp") -> Story:
    """Ranks on two hosts whose windows are equal, and whose own steps are as long as said."""
    num = len(own_step_s)
    shared = None if strategy is None else replace(plain_copies(num), strategy=strategy)  # type: ignore[arg-type]
    return Story(
        windows=[window(rank, host=f"node{rank // 2}") for rank in range(num)],
        setups=[
            setup(rank, parallelism=shared, device=replace(H200, uuid=f"GPU-{rank}a", index=rank))
            for rank in range(num)
        ],
        extra=[own_compute(rank, step_s) for rank, step_s in enumerate(own_step_s)],
    )


def said(story: Story) -> list[Doubt]:
    return list(unequal_ranks(Measured(launch=story.launch())))


def test_the_slow_rank_is_named_with_its_host_its_device_and_by_how_much() -> None:
    (found,) = said(of_ranks(0.010, 0.010, 0.013, 0.010))
    assert (found.validity, found.code) == ("SUSPECT", "unequal-ranks")
    assert found.reason == (
        "rank 2 on node1 (NVIDIA H200 GPU-2a) is 30 % slower than the median of the other ranks: "
        "13.0 ms against 10.0 ms a step without gradient sync, after the window; "
        "in the window all ranks wait for the slowest"
    )


def test_of_two_ranks_the_slower_is_named_and_not_the_faster() -> None:
    (found,) = said(of_ranks(0.013, 0.010))
    assert found.reason.startswith("rank 0 on node0 (NVIDIA H200 GPU-0a) is 30 % slower than the other rank:")


@pytest.mark.parametrize(("times", "num_doubts"), [(1.049, 0), (1.051, 1)])
def test_a_twentieth_is_the_limit(times: float, num_doubts: int) -> None:
    assert len(said(of_ranks(0.010, 0.010 * times, 0.010))) == num_doubts


def test_several_slow_ranks_are_named_together_and_a_slow_majority_leaves_the_fast_ones() -> None:
    (found,) = said(of_ranks(0.010, 0.013, 0.012, 0.010, 0.010))
    assert "rank 1 on node0" in found.reason
    assert "(as is rank 2)" in found.reason
    (found,) = said(of_ranks(0.013, 0.013, 0.013, 0.010, 0.013))
    assert "rank 3 on node1 (NVIDIA H200 GPU-3a) is 23 % faster than the median" in found.reason


def test_ranks_that_work_side_by_side_are_told_apart_by_their_own_windows() -> None:
    slow = window(1, steps_s=1.2, wall_s=1.2)
    story = Story(windows=[window(0), slow], case=case(kind="inference", nproc=2))
    (found,) = said(story)
    assert "rank 1 on node1 (CPU) is 20 % slower" in found.reason
    assert found.reason.endswith(
        "12.0 ms against 10.0 ms a step in the window, where each rank works on its own"
    )


def test_where_ranks_wait_and_none_was_timed_alone_equal_windows_say_nothing_and_unequal_ones_do() -> None:
    story = replace(of_ranks(0.010, 0.013), extra=())
    assert not said(story)
    windows = [window(0), window(1, wall_s=1.06)]
    (found,) = said(replace(story, windows=windows))
    assert "1.06 s against 1 s to the end of the window" in found.reason.replace("1.00", "1")


def test_why_nobody_was_timed_alone_stands_under_the_table() -> None:
    story = of_ranks(0.010, 0.013, strategy="fsdp")
    missing = [
        replace(own_compute(rank, 0.01), bursts_s=(), missing="a step of fsdp gathers") for rank in (0, 1)
    ]
    shown, measures = ranks_shown([replace(story, extra=missing).launch()])
    assert shown is not None
    table, note = sections_of_ranks(shown, measures, num_launches=1)
    assert [header.title for header in table.headers] == [  # type: ignore[union-attr]
        *("rank", "host", "device", "window", "step", "vs others")
    ]
    assert note.lines == (  # type: ignore[union-attr]
        "ranks wait for each other in every step, so it is not known which of them is slow: "
        "a step of fsdp gathers",
    )


@pytest.mark.parametrize("bursts_s", [((0.01,) * 5,), ((0.01,), ())])
def test_a_rank_whose_record_lost_bursts_is_not_compared_by_its_own_steps(
    bursts_s: tuple[tuple[float, ...], ...],
) -> None:
    story = of_ranks(0.01, 0.01)
    lost = replace(story, extra=[replace(own_compute(0, 0.01), bursts_s=bursts_s), own_compute(1, 0.01)])
    compared = compare_ranks(lost.launch())
    assert compared is not None
    assert compared.basis == "windows"


def test_the_table_shows_the_launch_in_which_ranks_differ_most() -> None:
    launches = [of_ranks(0.010, 0.010), replace(of_ranks(0.010, 0.013), replicate=1)]
    shown, measures = ranks_shown([story.launch() for story in launches])
    assert shown is not None
    assert shown.replicate == 1
    table, _ = sections_of_ranks(shown, measures, num_launches=2)
    assert table.title == "Ranks of launch 2"
    assert [[cell.text for cell in row][-2:] for row in table.rows] == [  # type: ignore[union-attr]
        ["10.0 ms", "−23.1 %"],
        ["13.0 ms", "+30.0 %"],
    ]
    assert ranks_shown([Story().launch()]) == (None, [])
    assert compare_ranks(Story().launch()) is None


def _steps(shape: str, rng: np.random.Generator, *, ranks: int, steps: int) -> Any:
    """Step times of ranks that are alike: (rank, burst, step), bursts as far apart as the worker's are."""
    size = (ranks, NUM_BURSTS * (2 * steps + 1))
    noise = rng.standard_normal(size)
    if shape == "autocorrelated":
        for i in range(1, size[1]):
            noise[:, i] = 0.9 * noise[:, i - 1] + 0.436 * noise[:, i]
        times = 1 + 0.05 * noise
    elif shape == "stalls":
        times = (1 + 0.02 * noise) * np.where(rng.random(size) < 0.05, 10, 1)
    elif shape == "quantised":
        times = np.round(4 * (1 + 0.05 * noise)) / 4
    elif shape == "drifting":
        times = (1 + 0.02 * noise) * np.linspace(1, 1.2, size[1])
    else:
        times = np.exp({"steady": 0.01, "noisy": 0.3}[shape] * noise)
    return times.reshape(ranks, NUM_BURSTS, -1)[:, :, :steps]


def _share_accused(shape: str, *, ranks: int, draws: int, times: Sequence[float] = ()) -> tuple[float, float]:
    """Return in which share of launches the first rank is named, and any other one."""
    rng = np.random.default_rng(7)
    first, others = 0, 0
    for _ in range(draws):
        steps = _steps(shape, rng, ranks=ranks, steps=20)
        steps[: len(times)] *= np.reshape(times, (-1, 1, 1))
        apart = find_outliers(steps.tolist())
        first += apart[0]
        others += any(apart[1:])
    return first / draws, others / draws


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("shape", ["steady", "noisy", "autocorrelated", "stalls", "quantised", "drifting"])
def test_ranks_that_are_alike_are_accused_in_5_percent_of_launches_at_most(shape: str, ranks: int) -> None:
    first, others = _share_accused(shape, ranks=ranks, draws=150)
    assert max(first, others) <= 0.09  # 150 draws of 5 %: over 9 % in 2 of 100


@pytest.mark.parametrize("shape", ["steady", "noisy", "autocorrelated", "stalls", "drifting"])
def test_a_rank_at_1_3_times_is_named_and_no_other(shape: str) -> None:
    first, others = _share_accused(shape, ranks=8, draws=60, times=(1.3,))
    assert first >= 0.95
    assert others <= 0.10
