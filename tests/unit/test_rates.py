"""The one rate function: total over total, and nothing from a window without length."""

from __future__ import annotations

import pytest

from gpuproof.launches.launch import throughput


def test_a_rate_is_total_over_total_not_the_mean_of_rates() -> None:
    # 99 steps of 7.8 ms and one of 100 ms at 64 items: 6,400/(0.7722 + 0.1) = 7,337.8; the mean of the
    # steps' own rates would be (99·64/0.0078 + 64/0.1)/100 = 8,129.5.
    durations_s = [0.0078] * 99 + [0.1]
    assert throughput(64 * 100, sum(durations_s)) == pytest.approx(7337.766, abs=1e-3)


def test_items_of_all_ranks_go_over_the_longest_window() -> None:
    # Four ranks of 1,000 items; the slowest took 2 s.
    assert throughput(4 * 1000, max([1.6, 2.0, 1.9, 1.7])) == 2000.0


def test_no_items_are_a_rate_of_0() -> None:
    assert throughput(0, 1.0) == 0.0


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_window_without_length_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="longer than 0 s"):
        throughput(100, seconds)


@pytest.mark.parametrize("items", [-1.0, float("nan"), float("inf")])
def test_what_is_no_count_is_refused(items: float) -> None:
    with pytest.raises(ValueError, match="number of items"):
        throughput(items, 1.0)
