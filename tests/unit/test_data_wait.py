"""Waiting for data: its share, the doubt from it, and what was made before the window."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuproof.launches.launch import Launch
from gpuproof.launches.limits import data_wait_share
from gpuproof.records.result import Doubt
from gpuproof.records.work.data import DataUsed
from gpuproof.verdict.doubts.base import Measured
from gpuproof.verdict.doubts.window import batches_ready_share, limited, made_before
from records_by_hand import Story, setup, window

LOADER = DataUsed(
    loading="loader",
    split=None,
    source=None,
    num_samples=1797,
    sha256=None,
    sha256_of=None,
    batches_ahead=0,
)


def launch(*waits_s: float | None, batches_ahead: int = 0) -> Launch:
    """A launch of 100 steps of 10 samples in 1 s, a rank for each wait."""
    used = None if waits_s[0] is None else replace(LOADER, batches_ahead=batches_ahead)
    return Story(
        windows=[window(rank, data_wait_s=wait_s) for rank, wait_s in enumerate(waits_s)],
        setups=[setup(rank, data_used=used) for rank in range(len(waits_s))],
    ).launch()


def doubts(found: Launch) -> list[Doubt]:
    return [*limited(Measured(launch=found)), *made_before(Measured(launch=found))]


def codes(found: Launch) -> list[str]:
    return [doubt.code for doubt in doubts(found)]


def test_without_a_loader_there_is_nothing_to_wait_for() -> None:
    alone = launch(None)
    assert data_wait_share([alone]) is None
    assert batches_ready_share(alone) is None
    assert codes(alone) == []


def test_the_rank_that_waited_longest_speaks_for_all() -> None:
    found = launch(0.01, 0.12)
    assert data_wait_share([found]) == pytest.approx(0.12)
    (doubt,) = doubts(found)
    assert (doubt.validity, doubt.code) == ("VALID", "data-bound")
    assert "waited for data for 12 % of the window (rank 1)" in doubt.reason


def test_launches_are_weighed_by_their_windows() -> None:
    assert data_wait_share([launch(0.1), launch(0.3)]) == pytest.approx(0.2)
    assert data_wait_share([launch(0.1), launch(None)]) is None


@pytest.mark.parametrize(("waited_s", "expected"), [(0.0, []), (0.05, []), (0.051, ["data-bound"])])
def test_from_five_percent_the_rate_is_the_loaders(waited_s: float, expected: list[str]) -> None:
    assert codes(launch(waited_s)) == expected


@pytest.mark.parametrize(("ahead", "expected"), [(10, []), (11, ["made-before"]), (200, ["made-before"])])
def test_batches_made_before_the_window_flatter_a_short_one(ahead: int, expected: list[str]) -> None:
    found = launch(0.0, batches_ahead=ahead)
    assert batches_ready_share(found) == pytest.approx(ahead / 100)
    assert codes(found) == expected
    if ahead == 200:
        assert "200 batches may have been ready" in doubts(found)[0].reason
        assert "100 % of all that it used" in doubts(found)[0].reason
