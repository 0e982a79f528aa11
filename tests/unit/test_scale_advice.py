"""Advice of a scaling study: what was measured and its evidence, launch-bound steps, costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from concluding import lines_of
from gpuproof.comparison.winners import ComparedSide
from gpuproof.statistics.estimate import Interval
from gpuproof.suites.scale.advice import fixed_time, measured_advice
from gpuproof.suites.scale.plan import Payback, Prices, worth_of
from gpuproof.suites.scale.speed_up import SpeedUp, speed_up
from studies_by_hand import concluded

ADVICE = "Advice, from what was measured"
RATIO = Interval(
    centre=1.6,
    low=1.25,
    high=2.0,
    confidence=0.95,
    method="by hand",
    num_launches=6,
    num_samples=6,
    between_launches=True,
)


def of_rates(*rates: float) -> SpeedUp:
    single, several = (ComparedSide(name="", values=side) for side in ((99.0, 100.0, 101.0), rates))
    return speed_up(single, several, num_devices=2, confidence=0.95)


FASTER, SLOWER, UNSURE = of_rates(169, 170, 171), of_rates(79, 80, 81), of_rates(60, 100, 160)


@pytest.mark.parametrize(
    ("averages", "answer", "law"),
    [
        ([("strong", SLOWER), ("weak", FASTER)], "yes", "weak"),
        ([("strong", SLOWER), ("weak", SLOWER)], "no", "strong"),
        ([("strong", SLOWER), ("weak", UNSURE)], "not decided", "strong"),
        ([("strong", UNSURE)], "not decided", "strong"),
        ([("strong", of_rates(100.0))], "not decided", "strong"),
        ([("strong", of_rates(499, 500, 501))], "not decided", "strong"),  # more than two devices can give
    ],
)
def test_the_measured_answer_needs_intervals_that_exclude_one(
    averages: list[tuple[str, SpeedUp]], answer: str, law: str
) -> None:
    found = measured_advice(averages)
    assert found is not None
    assert (found.answer, found.law) == (answer, law)


def test_the_measured_answer_stands_before_the_rule_of_thumb(tmp_path: Path) -> None:
    # the rule says no at batch 32 (2,021,379 parameters): two devices were 1.67 times as fast
    step_s: dict[str, Any] = {"bs32-n1": (0.010, 0.0101, 0.0099), "bs32-n2-strong": (0.006, 0.00606, 0.00594)}
    done = concluded(tmp_path, step_s, device_price=800.0, saved_hour_worth=2.0, busy_hours_per_month=100.0)
    (answer, cost) = lines_of(done, ADVICE)
    assert answer.startswith("several devices: yes: Multi-GPU provides")
    assert "1.67 × (1.5" in answer
    assert "launches per point: 3" in answer
    assert cost.startswith("costs, 2 devices, strong scaling: does not pay: the same work costs 1.20 ×")
    assert "break-even is a speed-up of 2.00" in cost
    thumb = lines_of(done, "Heuristic, not measured here")
    assert thumb == [
        "Batch size 32 too small for medium model: no",
        "the measurements above take precedence over it",
    ]


def test_by_the_piece_devices_pay_from_the_ratio_of_the_prices_on() -> None:
    alone = worth_of(RATIO, num_devices=2, prices=Prices(device=800))
    assert (alone.price_ratio, alone.cost_ratio.low, alone.cost_ratio.high) == (2.0, 1.0, 1.6)
    assert alone.verdict == "cannot tell"  # at the interval's end both cost the same
    dear_host = worth_of(RATIO, num_devices=2, prices=Prices(device=100, host=900))
    assert (dear_host.price_ratio, dear_host.verdict) == (1.1, "pays")


def test_by_the_hour_saved_devices_pay_back_or_never() -> None:
    prices = Prices(device=800, saved_hour_worth=2, busy_hours_per_month=100)
    # 200 a month; a speed-up of 2 saves half of it, one of 1.25 a fifth
    found = worth_of(RATIO, num_devices=2, prices=prices).payback
    assert found is not None
    assert (found.least_months, found.most_months) == pytest.approx((8.0, 20.0))
    may_be_none = worth_of(replace(RATIO, low=0.9), num_devices=2, prices=prices)
    assert may_be_none.payback == Payback(least_months=8.0, most_months=None)
    slower = worth_of(replace(RATIO, low=0.7, centre=0.8, high=0.9), num_devices=2, prices=prices)
    assert slower.payback == Payback(least_months=None, most_months=None)
    assert worth_of(RATIO, num_devices=2, prices=Prices(device=800)).payback is None


def test_published_steps_are_launch_bound(tmp_path: Path) -> None:
    # 6.48 ms at batch 8, 7.58 ms at 128: the published single-device steps of the medium model
    step_s = {
        "bs8-n1": (6.48e-3, 6.5e-3, 6.46e-3),
        "bs128-n1": (7.58e-3, 7.6e-3, 7.56e-3),
        "bs8-n2-strong": (9e-3, 9e-3, 9e-3),
        "bs128-n2-strong": (9e-3, 9e-3, 9e-3),
    }
    (answer, bound) = lines_of(concluded(tmp_path, step_s, batch_sizes=[8, 128]), ADVICE)
    assert answer.startswith("several devices: no: Single GPU provides better performance")
    assert bound.startswith(
        "launch-bound: batch 8 to 128 on one device: 1.17 times the step time for 16 times"
    )


def test_steps_that_grow_with_the_batch_are_not_launch_bound() -> None:
    found = fixed_time({16: [1.0, 1.01, 0.99], 128: [8.0, 8.1, 7.9]})
    assert found is not None
    assert found.share is not None
    assert not found.is_launch_bound
    assert (
        found.share.low < 0 < found.share.high
    )  # nothing is fixed: eight times the batch, eight times the step


@pytest.mark.parametrize(
    ("steps_s", "missing"),
    [
        ({16: [1.0], 128: [1.0]}, "needs 3"),
        ({100: [1.0, 1.0, 1.1], 128: [1.0, 1.1, 1.0]}, "too close together"),
    ],
)
def test_too_little_to_know_what_is_fixed_is_said(steps_s: dict[int, list[float]], missing: str) -> None:
    found = fixed_time(steps_s)
    assert found is not None
    assert found.share is None
    assert missing in (found.missing or "")
    assert fixed_time({16: [1.0, 1.0, 1.0], 32: []}) is None


@pytest.mark.parametrize("tails", ["normal", "t4", "quantised"])
@pytest.mark.parametrize("spreads", [(0.02, 0.02), (0.01, 0.05)])
def test_the_interval_of_the_fixed_share_holds_the_truth_as_often_as_said(
    tails: str, spreads: tuple[float, float]
) -> None:
    rng, num_studies, outside = np.random.default_rng(3), 1000, 0
    for _ in range(num_studies):
        times = {}
        for batch, spread in zip((16, 128), spreads, strict=True):
            drawn = rng.standard_t(4, 5) / 2**0.5 if tails == "t4" else rng.normal(0, 1, 5)
            values = (4.0 + 4.0 * batch / 128) * np.exp(spread * drawn)
            times[batch] = list(np.round(values / 0.05) * 0.05 if tails == "quantised" else values)
        found = fixed_time(times)
        assert found is not None
        assert found.share is not None
        outside += not found.share.low <= 0.5 <= found.share.high
    assert outside / num_studies <= 0.05 + 0.015  # two standard errors of a thousand studies
