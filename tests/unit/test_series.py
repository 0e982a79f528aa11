"""Counters over many spans at once come to what each span comes to by itself."""

from __future__ import annotations

import numpy as np
import pytest

from gpuproof.readings.series import FEW_SPANS, mean_over_devices, mean_over_time, total_change
from gpuproof.readings.window import RecordingWindow, Span


@pytest.mark.parametrize("seed", range(5))
def test_many_spans_are_the_sum_of_each(seed: int) -> None:
    """Unequal steps, a counter that goes back now and then, spans of no, one and several readings."""
    chance = np.random.default_rng(seed)
    times = np.cumsum(chance.uniform(0.1, 2.0, 400))
    totals = np.cumsum(chance.integers(0, 50, 400)).astype(np.float64) % 300
    edges = np.sort(chance.uniform(-5.0, float(times[-1]) + 5, 60))
    spans = tuple(
        Span(begin_s=float(b), end_s=float(e)) for b, e in zip(edges[::2], edges[1::2], strict=True)
    )
    assert len(spans) > FEW_SPANS
    found = total_change(times, totals, window=RecordingWindow(name="x", spans=spans))
    windows = [RecordingWindow(name="x", spans=(span,)) for span in spans]
    parts = [part for window in windows if (part := total_change(times, totals, window=window)) is not None]
    assert found is not None
    assert found.resets == sum(part.resets for part in parts) > 0
    assert found.increase == pytest.approx(sum(part.increase for part in parts))
    assert found.covered_s == pytest.approx(sum(part.covered_s for part in parts))
    assert found.since_resets == pytest.approx(sum(part.since_resets for part in parts))
    assert found.last_total == parts[-1].last_total


def test_many_spans_without_two_readings_come_to_nothing() -> None:
    spans = tuple(Span(begin_s=float(t), end_s=t + 0.5) for t in range(10))
    times = np.arange(10.0)
    assert total_change(times, times, window=RecordingWindow(name="x", spans=spans)) is None


@pytest.mark.parametrize("limit_w", [700.0, 699.9, 1979.7, 0.1])
@pytest.mark.parametrize("num", [3, 7, 49, 1001])
def test_the_mean_of_equal_readings_is_the_reading(limit_w: float, num: int) -> None:
    times = np.cumsum(np.random.default_rng(num).uniform(0.05, 0.15, num))
    same = np.full(num, limit_w)
    for dithered in (False, True):
        assert mean_over_time(times, same, dithered=dithered) == limit_w
    assert mean_over_time(times, same, dithered=False, weights=np.zeros(num)) == limit_w
    assert set(mean_over_devices([same[:3]] * num, length=3)) == {limit_w}
