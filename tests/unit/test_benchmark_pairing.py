"""The arithmetic behind the benchmarks, against numbers worked out by hand."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from gpuproof.statistics.estimate import Interval, Unavailable

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
pairing = import_module("pairing")

BLOCK = [("A", 2.0), ("B", 3.0), ("B", 5.0), ("A", 3.0)]


def interval(low: float, high: float) -> Interval:
    return Interval(
        low=low,
        high=high,
        centre=(low + high) / 2,
        confidence=0.95,
        method="given",
        num_launches=5,
        num_samples=5,
        between_launches=True,
    )


def judgement(estimate: Interval | Unavailable, noise: Interval | Unavailable) -> Any:
    return pairing.Judgement(label="x", estimate=estimate, noise=noise, budget=1.02, parity=1.0)


def test_palindromes_give_every_side_the_same_mean_position() -> None:
    orders = pairing.palindromes(["A", "B", "C"], num_blocks=2)
    assert orders == [("A", "B", "C", "C", "B", "A"), ("C", "B", "A", "A", "B", "C")]
    for order in orders:
        positions = [sum(place for place, side in enumerate(order) if side == name) for name in "ABC"]
        assert positions == [5, 5, 5]


def test_a_linear_drift_cancels_in_a_block() -> None:
    order = pairing.palindromes(["A", "B"], num_blocks=1)[0]
    block = [(side, 10.0 + place) for place, side in enumerate(order)]
    assert pairing.ratios([block], "B", base="A") == [1.0]
    assert pairing.differences([block], "B", base="A") == [0.0]


def test_ratio_and_difference_of_a_block() -> None:
    # B: (3 + 5) / 2 = 4; A: (2 + 3) / 2 = 2.5.
    assert pairing.ratios([BLOCK], "B", base="A") == [pytest.approx(1.6)]
    assert pairing.differences([BLOCK], "B", base="A") == [pytest.approx(1.5)]


def test_a_disturbed_block_does_not_move_a_launch() -> None:
    quiet = [("A", 1.0), ("B", 1.1)]
    disturbed = [("A", 1.0), ("B", 9.0)]
    assert pairing.launch_ratios([[quiet, disturbed, quiet]], "B", base="A") == [pytest.approx(1.1)]


def test_a_side_that_did_not_run_is_an_error() -> None:
    with pytest.raises(ValueError, match="no segment of 'C' in a block of A, B, B, A"):
        pairing.side_mean(BLOCK, "C")


@pytest.mark.parametrize(
    ("estimate", "noise", "finding"),
    [
        (interval(1.000, 1.018), interval(0.995, 1.005), "within budget"),
        (interval(1.000, 1.020), interval(0.995, 1.005), "within budget"),
        (interval(1.010, 1.030), interval(0.995, 1.005), "not shown"),
        (interval(1.021, 1.030), interval(0.995, 1.005), "over budget"),
        (interval(1.000, 1.018), interval(0.975, 1.005), "not measurable here"),
        (interval(1.500, 1.600), interval(0.999, 1.021), "not measurable here"),
        (Unavailable(reason="one launch"), interval(0.995, 1.005), "not measurable here"),
        (interval(1.000, 1.018), Unavailable(reason="one launch"), "not measurable here"),
    ],
)
def test_findings(estimate: Interval | Unavailable, noise: Interval | Unavailable, finding: str) -> None:
    assert judgement(estimate, noise).finding == finding


def test_the_noise_floor_is_the_far_end_of_a_against_a() -> None:
    assert judgement(interval(1.0, 1.01), interval(0.99, 1.004)).noise_floor == pytest.approx(0.01)


def test_lines_hold_figure_bound_budget_and_noise() -> None:
    # Student's t with 2 degrees of freedom: 1.1 ± 4.302653 · 0.1 / √3; the noise: 1 ± 4.302653 · 0.001 / √3.
    result = pairing.judge_ratios("help", [1.0, 1.1, 1.2], noise_values=[0.999, 1.0, 1.001], budget=5.0)
    assert result.lines() == [
        "help: WITHIN BUDGET",
        "  figure       1.1000, 95% interval 0.8516 to 1.3484 (Student's t on launches, n = 3)",
        "  upper bound  1.3484 against a budget of 5",
        "  noise floor  ±0.0025, from 1.0000, 95% interval 0.9975 to 1.0025 (Student's t on launches, n = 3)",
    ]


def test_lines_say_why_there_is_no_figure() -> None:
    result = pairing.judge_differences("run", [0.4], noise_values_s=[0.01], budget_s=0.8)
    reason = "one launch does not show how much launches vary (needs 2)"
    assert result.lines() == [
        "run: NOT MEASURABLE HERE",
        f"  figure       – ({reason})",
        "  upper bound  – against a budget of 0.8 s",
        f"  noise floor  not known ({reason})",
    ]
