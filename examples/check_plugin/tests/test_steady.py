"""Test the spread against a value computed by hand, and a run in which no launch finished."""

import pytest
from gpuproof_example_check import STEADY, spread

from gpuproof.verdict.check import Check


def test_the_spread_is_the_interquartile_range_over_the_median() -> None:
    assert spread([0.9, 1.0, 1.1]) == pytest.approx(0.2)


def test_nothing_finished_is_no_pass() -> None:
    assert isinstance(STEADY, Check)
    assert STEADY.judge([]).status == "ERROR"
