"""One launch in figures: the items of all ranks over the longest rank's window, at 1, 2 and 4 ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuproof.launches.launch import summarize_launch
from gpuproof.records.work.training import Replicas
from records_by_hand import Story, failure, one_rank, setup, steady_times, window


def test_one_rank_is_its_items_over_its_window() -> None:
    launch = one_rank().launch()
    assert launch.items_per_s_total == 1000  # 1,000 samples in 1 s
    assert launch.mean_step_s == 0.010
    assert launch.items_per_step_total == 10
    assert launch.flops_per_s_per_device == 1e11  # 100 steps of 1 GFLOP in 1 s


def test_two_ranks_are_both_ranks_items_over_the_longer_window() -> None:
    launch = Story(windows=[window(0), window(1, wall_s=1.25)]).launch()
    assert launch.world_size == 2
    assert launch.items_total == 2000
    assert launch.items_per_s_total == 1600  # 2,000 in 1.25 s; not 1,000 + 800, and not twice anything
    assert launch.slowest.rank == 1
    assert launch.mean_step_s == 0.0125


def test_four_ranks_with_a_straggler() -> None:
    launch = Story(windows=[window(0), window(1), window(2, wall_s=2.0), window(3)]).launch()
    assert launch.items_per_s_total == 2000  # 4,000 in 2 s
    assert launch.items_per_step_total == 40


def test_step_times_are_those_of_the_slowest_rank_without_its_warm_up() -> None:
    story = Story(windows=[window(0), window(1, wall_s=1.25)], times_s=steady_times(100, 0.0125))
    assert sum(story.launch().step_times_s) == pytest.approx(1.25)


def test_flops_are_those_of_one_device_over_the_longest_window() -> None:
    setups = [setup(rank, flops_per_step=5e9) for rank in (0, 1)]
    launch = Story(windows=[window(0), window(1, wall_s=1.25)], setups=setups).launch()
    assert launch.flops_per_s_per_device == 5e9 * 100 / 1.25 == 4e11


def test_replicas_of_one_process_are_devices_each() -> None:
    replicas = Replicas(framework="TensorFlow 2.21.0", num_devices=4, reduction="nccl")
    setups = [setup(0, flops_per_step=5e9, replicas=replicas)]
    launch = Story(windows=[window(0, wall_s=1.25)], setups=setups).launch()
    assert (launch.world_size, launch.num_devices, launch.data_parallel_size) == (1, 4, 4)
    assert launch.flops_per_s_per_device == 4e11


def test_a_launch_that_failed_or_measured_no_step_has_no_figures() -> None:
    good = one_rank().records()
    assert summarize_launch(replace(good, records=(*good.records[:-1], failure("exception")))) is None
    assert summarize_launch(one_rank(num_steps=0, items=0).records()) is None
    assert summarize_launch(replace(good, records=good.of(type(good.records[0])))) is None


def test_tokens_are_counted_as_items_and_sequences_as_samples() -> None:
    windows = [window(rank, items=100 * 2048) for rank in (0, 1)]
    setups = [setup(rank, items_per_step=2048, items_per_sample=512, item="tokens") for rank in (0, 1)]
    launch = Story(windows=windows, setups=setups).launch()
    assert launch.items_per_s_total == 2 * 100 * 2048  # in 1 s
    assert (launch.samples_per_step_total, launch.samples_total) == (2 * 4, 2 * 400)
