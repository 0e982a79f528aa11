"""What the benchmark of the load generator makes of its launches."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from serving_generator import bare_lateness_s, finding_of, lines_of, sustained_per_s

WITHIN, OVER, WIDE = [3e-4, 3.1e-4, 3.2e-4], [3e-3, 3.1e-3, 3.2e-3], [1e-4, 1e-3, 9e-3]


@pytest.mark.parametrize(
    ("late_s", "floor_s", "finding"),
    [
        (WITHIN, 1e-4, "within budget"),
        (WITHIN, 2e-3, "within budget"),
        (OVER, 1e-4, "over budget"),
        (OVER, 2e-3, "not measurable here"),  # a loop that only sleeps is as late
        (WIDE, 1e-4, "not shown"),
        ([3e-4], 1e-4, "not measurable here"),
    ],
)
def test_a_rate_is_judged_by_the_interval_of_its_launches(
    late_s: list[float], floor_s: float, finding: str
) -> None:
    assert finding_of(late_s, floor_s=floor_s) == finding


def test_a_rate_is_sustained_where_all_below_it_are() -> None:
    assert sustained_per_s({10: WITHIN, 20: WITHIN, 40: OVER, 80: WITHIN}, floor_s=1e-4) == 20
    assert sustained_per_s({10: OVER, 20: WITHIN}, floor_s=1e-4) is None


def test_the_verdict_at_the_rate_that_is_asked_comes_first() -> None:
    lines = lines_of({5_000: WITHIN, 20_000: OVER}, floor_s=1e-4)
    assert lines[0].endswith("at 20,000 requests/s: OVER BUDGET")
    assert lines[-1].startswith("sustained: 5,000 requests/s")


def test_a_bare_loop_wakes_no_earlier_than_it_asked() -> None:
    assert bare_lateness_s() >= 0
